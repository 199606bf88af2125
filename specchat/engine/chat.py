"""A conversation turned into tokens and a reply turned back into text.

Contract: `Engine.reply(messages, options)` renders the target's own template, reuses the longest prefix that the
cache already holds, reads the rest, runs the decoder's rounds and yields events; it may be abandoned at any event
(`close()` on the generator) and leaves both caches consistent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from specchat.engine.rounds import Origin, Round
from specchat.engine.sampling import SamplingSettings
from specchat.engine.stats import Figures


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


@dataclass(frozen=True, slots=True)
class Reading:
    """Progress through the prompt: `done` of `total` tokens that were not in the cache (`reused` were)."""

    done: int
    total: int
    reused: int
    model: str = "target"  # or "draft"


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of text of one origin; never splits a character. Concatenated pieces are the reply."""

    text: str
    origin: Origin
    reasoning: bool = False


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
