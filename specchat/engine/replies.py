"""What is asked of the engine for a reply, and the events that come of it. Values only: nothing native is loaded.

Contract: a reply is any number of `Reading`, then of `Generated`, with a `Notice` anywhere, and one `Finished`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from specchat.engine.rounds import Round
from specchat.engine.sampling import SamplingSettings
from specchat.engine.stats import Figures
from specchat.engine.text import Piece
from specchat.errors import SpecchatError


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. `role` is "system", "user" or "assistant"; reasoning text is kept apart from the answer."""

    role: str
    content: str
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class ReplyOptions:
    """How one reply is to be written."""

    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    max_tokens: int | None = None  # None: until the model ends or the context is full
    stop: tuple[str, ...] = ()
    template_variables: tuple[tuple[str, object], ...] = ()  # for example (("enable_thinking", False),)
    continue_last: bool = False  # the last message is an unfinished reply to go on with
    draft_first: bool = False  # the draft reads the prompt before the first token, off the clock: for a comparison


@dataclass(frozen=True, slots=True)
class Reading:
    """Progress through the prompt: `done` of `total` tokens that were not in the cache (`reused` were)."""

    done: int
    total: int
    reused: int


@dataclass(frozen=True, slots=True)
class Generated:
    """One round's text and figures. `pieces` may be empty while a character or a stop string is incomplete."""

    pieces: tuple[Piece, ...]
    round: Round
    figures: Figures


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the person should be told in a sentence (no template: ChatML is used; oldest turns left out; ...)."""

    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The reply's end. `reason`: "end", "stop" (a stop string), "length", "context" or "cancelled"."""

    reason: str
    figures: Figures
    pieces: tuple[Piece, ...] = ()  # text held back for a stop string that did not come


Event: TypeAlias = Reading | Generated | Notice | Finished


class PromptTooLong(SpecchatError):
    """Not even the last turn fits into the context; nothing was done to the caches."""

    option = "-c"

    def __init__(self, what: str, tokens: int, n_ctx: int) -> None:
        super().__init__(f"{what} has {tokens:,} tokens and the context {n_ctx:,}: shorten it or ask for a longer one")
        self.tokens = tokens
        self.n_ctx = n_ctx
