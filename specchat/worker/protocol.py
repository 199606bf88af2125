"""The messages between a session and the engine's process.

Contract: frozen values, pickled one after the other over the child's own pipes (no framing of ours: a pickle knows
its end). The client numbers its requests upwards; every answer carries the number of the request it belongs to, and
each request but `SetSpeculation`, `SetDisturbed`, `Cancel`, `AnswerNow` and `Quit` is answered last by exactly one of
`Loaded`, `Emitted` with a `Finished` event, `Counted`, `Weighed` or `Failed`. `Changed` comes unasked, under number 0.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO, Final, TypeAlias

from specchat.engine.policy import Speculation
from specchat.engine.replies import Event, Message, ReplyOptions

_PICKLE: Final = 5


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """How models are loaded; None leaves the choice to the engine."""

    n_ctx: int | None = None  # tokens; None: as `specchat.memory.planning` finds room
    threads: int | None = None
    gpu_layers: int | None = None  # None: as many as fit, where the build has a GPU
    devices: tuple[str, ...] = ()  # ggml's names; empty: all
    memory_limit: int | None = None  # bytes that may be taken, of RAM and of each device
    type_k: str = "f16"  # of the target's cache; others than f16 change its distribution
    type_v: str = "f16"
    rpc: tuple[str, ...] = ()  # HOST:PORT of other machines whose devices are to be used too
    speculation: Speculation = field(default_factory=Speculation)
    disturbed: bool = False  # other work runs beside: what is measured now is not kept
    exact: bool = False  # the same bits whatever the number of tokens verified at once, where the model allows


# ---- to the child


@dataclass(frozen=True, slots=True)
class Load:
    """Load a target and, if one is named, its draft; replaces what was loaded before."""

    id: int
    target: Path
    draft: Path | None = None
    draft_required: bool = (
        False  # the user named this draft: fail if it cannot propose; a lack of memory costs it still
    )
    settings: LoadSettings = field(default_factory=LoadSettings)
    log: Path | None = None  # where llama.cpp's messages go
    steps_down: int = 0  # rungs of the plan to leave out: they ended the process before


@dataclass(frozen=True, slots=True)
class Ask:
    """Write the reply to `messages`."""

    id: int
    messages: tuple[Message, ...]
    options: ReplyOptions


@dataclass(frozen=True, slots=True)
class Count:
    """How many tokens is this text? Answered between two rounds if a reply is being written."""

    id: int
    text: str


@dataclass(frozen=True, slots=True)
class Margin:
    """How close is the target's choice after these tokens of a reply to `messages`? See `Engine.margin`."""

    id: int
    messages: tuple[Message, ...]
    options: ReplyOptions
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop the request `id` and every earlier one, at the next round or batch."""

    id: int


@dataclass(frozen=True, slots=True)
class AnswerNow:
    """Let the reasoning of the reply to the request `id` end at the next round."""

    id: int


@dataclass(frozen=True, slots=True)
class SetSpeculation:
    """From the next round on, speculate like this."""

    speculation: Speculation


@dataclass(frozen=True, slots=True)
class SetDisturbed:
    """From the next round on, other work of this program runs beside the engine, or no longer does."""

    disturbed: bool


@dataclass(frozen=True, slots=True)
class RestoreDraft:
    """Load the draft that memory did not suffice for, beside the target as it is; answered by `Loaded`."""

    id: int


@dataclass(frozen=True, slots=True)
class Quit:
    """End the process."""


Request: TypeAlias = (
    Load | Ask | Count | Margin | Cancel | AnswerNow | SetSpeculation | SetDisturbed | RestoreDraft | Quit
)


# ---- from the child


@dataclass(frozen=True, slots=True)
class Loading:
    """Progress: a short phrase fit to be shown ("loading the target"), and how far it got from 0 to 1 if known."""

    id: int
    stage: str
    fraction: float | None = None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """One loaded model: its name in the GGUF or else its file name, llama.cpp's description, bytes of weights."""

    name: str
    description: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What was loaded, and what came out otherwise than asked."""

    target: ModelInfo
    draft: ModelInfo | None
    n_ctx: int
    threads: int
    devices: tuple[str, ...] = ()
    draft_obstacle: str = ""  # why there is no draft model although one was asked for; "" where nothing is missing
    draft_can_return: bool = False  # only memory was missing: `RestoreDraft` may bring it back
    steps_down: int = 0  # which rung of the plan this is
    plan: tuple[str, ...] = ()  # the plan in print, a line each
    thinks: bool = False  # the model writes its reasoning before the answer
    can_toggle_thinking: bool = False  # its template has a variable for that
    notices: tuple[str, ...] = ()  # other things to tell the user once, a sentence each


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan in print, without a load. `missing`: why not even the target has room; "" if it has."""

    lines: tuple[str, ...]
    missing: str = ""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The engine is ready."""

    id: int
    info: EngineInfo


@dataclass(frozen=True, slots=True)
class Changed:
    """What is loaded has changed: the draft was released to give memory back."""

    info: EngineInfo
    id: int = 0


@dataclass(frozen=True, slots=True)
class Emitted:
    """One event of a reply; the reply is over after a `Finished`."""

    id: int
    event: Event


@dataclass(frozen=True, slots=True)
class Counted:
    """The answer to `Count`."""

    id: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Weighed:
    """The answer to `Margin`: the distance of the two likeliest logits."""

    id: int
    margin: float


class Fault(StrEnum):
    """Whose fault a failure is."""

    INPUT = "input"  # the request cannot be met: the sentence says why
    LENGTH = "length"  # the context is too short for it
    MEMORY = "memory"  # there is not enough of it
    INTERNAL = "internal"  # a bug; the traceback is in the log


@dataclass(frozen=True, slots=True)
class Failed:
    """The request failed; the process lives on with what was loaded before, if anything."""

    id: int
    sentence: str
    fault: Fault = Fault.INPUT


Answer: TypeAlias = Loading | Loaded | Changed | Emitted | Counted | Weighed | Failed


def write(stream: IO[bytes], message: Request | Answer) -> None:
    """Write one message whole. Raises OSError when nobody reads any more."""
    stream.write(pickle.dumps(message, _PICKLE))
    stream.flush()


def read_request(stream: IO[bytes]) -> Request:
    """The next message to the child. Raises EOFError at the end of the stream."""
    message: Request = pickle.load(stream)
    return message


def read_answer(stream: IO[bytes]) -> Answer:
    """The next message from the child. Raises EOFError at the end of the stream (or UnpicklingError inside one)."""
    message: Answer = pickle.load(stream)
    return message
