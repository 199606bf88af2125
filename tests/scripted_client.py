"""A client without a process: replies are scripted, so that a real session and screen can be driven through anything.

What passes between a real client and a real child process is tested in test_worker.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specchat.engine.policy import Mode, Speculation
from specchat.engine.replies import Event, Finished, Generated, Message, ReplyOptions
from specchat.engine.rounds import Origin, Round
from specchat.engine.stats import Figures
from specchat.engine.text import Piece
from specchat.session import Launch, Session
from specchat.worker.client import Client, EngineError, EngineKilled
from specchat.worker.protocol import EngineInfo, Loading, LoadSettings, ModelInfo

INFO = EngineInfo(
    target=ModelInfo("SmolLM2 135M Instruct", "llama 135M Q8_0", 144_000_000),
    draft=ModelInfo("SmolLM2 135M Instruct, pruned", "llama 114M Q4_0", 78_000_000),
    n_ctx=8192,
    threads=2,
)

Script = Callable[["ScriptedClient", Sequence[Message]], Iterator[Event]]

_DRAFTERS = {Mode.DRAFT: "draft", Mode.NGRAM: "ngram", Mode.OFF: "plain", Mode.AUTO: "draft"}


def generated(text: str, figures: Figures, origin: Origin = Origin.PLAIN, reasoning: bool = False) -> Generated:
    """One round that kept one token."""
    event = Round(
        (1,),
        (origin,),
        figures.drafter,
        proposed=figures.depth,
        tested=figures.depth,
        accepted=0,
        draft_seconds=0.0,
        target_seconds=0.01,
        total_seconds=0.01,
        context_used=figures.context_used,
        reason=figures.reason,
    )
    return Generated((Piece(text, origin, reasoning),), event, figures)


def words(text: str, delay: float = 0.0) -> Script:
    """A script that streams `text` word by word with plausible figures, heeding speculation and `cancel`."""

    def script(client: ScriptedClient, _: Sequence[Message]) -> Iterator[Event]:
        pieces = text.replace(" ", " \0").split("\0")
        for number, piece in enumerate(pieces, start=1):
            if client.cancelled.wait(delay) if delay else client.cancelled.is_set():
                yield Finished("cancelled", client.figures(number - 1))
                return
            yield generated(piece, client.figures(number))
        yield Finished("end", client.figures(len(pieces)))

    return script


def until(event: threading.Event, text: str, rest: str) -> Script:
    """A script that writes `text`, waits for `event` (or to be cancelled), then writes `rest`."""

    def script(client: ScriptedClient, _: Sequence[Message]) -> Iterator[Event]:
        yield generated(text, client.figures(1))
        while not event.wait(0.01):
            if client.cancelled.is_set():
                yield Finished("cancelled", client.figures(1))
                return
        yield generated(rest, client.figures(2))
        yield Finished("end", client.figures(2))

    return script


def hanging(text: str) -> Script:
    """A script that writes `text` and then hears of nothing until it is killed."""

    def script(client: ScriptedClient, _: Sequence[Message]) -> Iterator[Event]:
        if text:
            yield generated(text, client.figures(1))
        client.killed.wait(20)
        raise EngineKilled("you ended the engine, which did not answer")

    return script


@dataclass
class ScriptedClient(Client):
    """Answers every message with `script`, which may yield any event and raise any error."""

    script: Script = field(default_factory=lambda: words("Hello there."))
    loading: Sequence[Loading | Exception] = ()
    loaded: EngineInfo = INFO
    reason: str = ""
    load_gate: threading.Event | None = None  # loading waits for it
    asked: list[tuple[Message, ...]] = field(default_factory=list)
    options: list[ReplyOptions] = field(default_factory=list)
    loads: int = 0
    closed: bool = False
    disturbed: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._info: EngineInfo | None = None
        self.cancelled = threading.Event()
        self.hurried = threading.Event()  # asked to end its reasoning
        self.killed = threading.Event()
        self.speculation = Speculation()

    @property
    def info(self) -> EngineInfo | None:
        return self._info

    def load(
        self,
        target: Path,
        draft: Path | None,
        settings: LoadSettings,
        *,
        draft_required: bool = False,
        steps_down: int = 0,
    ) -> Generator[Loading, None, None]:
        del target, draft, draft_required, steps_down
        self.loads += 1
        self.speculation = settings.speculation
        for step in self.loading:
            if isinstance(step, Exception):
                raise step
            yield step
        if self.load_gate is not None:
            self.load_gate.wait(10)
        self._info = self.loaded

    def reply(self, messages: Sequence[Message], options: ReplyOptions) -> Generator[Event, None, None]:
        self.cancelled.clear()
        self.killed.clear()
        self.asked.append(tuple(messages))
        self.options.append(options)
        try:
            yield from self.script(self, messages)
        except EngineError:
            raise
        except Exception:
            self._info = None
            raise

    def die(self) -> None:
        """The process is gone from now on."""
        self._info = None

    def cancel(self) -> None:
        self.cancelled.set()

    def answer_now(self) -> None:
        self.hurried.set()

    def set_speculation(self, speculation: Speculation) -> None:
        self.speculation = speculation

    def set_disturbed(self, disturbed: bool) -> None:
        self.disturbed.append(disturbed)

    def count(self, text: str) -> int:
        return len(text.split())

    def margin(self, messages: Sequence[Message], options: ReplyOptions, tokens: Sequence[int]) -> float:
        del messages, options
        return 0.5 + len(tokens)

    def close(self) -> None:
        self.cancelled.set()
        self.closed = True
        self._info = None

    def kill(self) -> None:
        self.killed.set()
        self._info = None

    def figures(self, tokens: int) -> Figures:
        """Plausible figures after `tokens` tokens."""
        plain = self.speculation.mode is Mode.OFF
        figures = Figures(
            drafter=_DRAFTERS[self.speculation.mode],
            reason=self.reason,
            tokens=tokens,
            passes=max(1, tokens // 2),
            tokens_per_second=52.13,
            tokens_per_second_now=48.71,
            tokens_per_pass=1.0,
            time_to_first_token=0.31,
            prompt_tokens=412,
            context_used=412 + tokens,
            context_size=8192,
        )
        if plain:
            return figures
        return replace(
            figures,
            proposed=4 * tokens,
            tested=3 * tokens,
            accepted=2 * tokens,
            depth=8,
            acceptance=0.731,
            acceptance_now=0.731,
            tokens_per_pass=2.41,
            tokens_per_pass_now=2.41,
            plain_tokens_per_second=32.18,
            speed_up=1.62,
        )


def session(client: Client, **changes: Any) -> Session:
    """A session of the demo pair on a scripted client."""
    values: dict[str, Any] = {"name": "demo", "target": Path("target.gguf"), "is_demo": True} | changes
    return Session(Launch(**values), client)
