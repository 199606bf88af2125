"""Which drafter, and how deep: decided before every round.

Contract: `Policy.choose` is asked once a round and answers with a `Choice` (depth 0 is plain decoding);
`Policy.record` is told what the round did and what it cost. The past may decide the depth, never the random numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from specchat.engine.drafters import Continue, Offer, always
from specchat.engine.rounds import Round


class Mode(StrEnum):
    """What the user asked for."""

    AUTO = "auto"
    DRAFT = "draft"
    NGRAM = "ngram"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Speculation:
    """The user's wish: a mode, and a depth for the fixed modes (None: the default of that drafter)."""

    mode: Mode = Mode.AUTO
    depth: int | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """What the next round does. `reason` is one short sentence for the status line, with numbers if there are any."""

    drafter: str  # "plain", "draft" or "ngram"
    depth: int
    reason: str = ""
    worth: Continue = always  # asked inside the round before each proposal is drawn


class Policy(Protocol):
    """Decides each round's drafter and depth."""

    speculation: Speculation

    def choose(self, offers: Mapping[str, Offer]) -> Choice:
        """Answer for the next round; `offers` holds each drafter that can propose at least one token now."""

    def record(self, event: Round) -> None:
        """Learn from a finished round."""


PLAIN = Choice("plain", 0)


class FixedPolicy:
    """One drafter at one depth: what `--speculation draft --depth 4` asks for, and what benches compare with.

    `auto` takes the draft model where there is one, else the n-gram look-up.
    """

    DEPTHS: Final[Mapping[str, int]] = {"draft": 4, "ngram": 15}

    def __init__(self, speculation: Speculation) -> None:
        self.speculation = speculation

    def choose(self, offers: Mapping[str, Offer]) -> Choice:
        mode, depth = self.speculation.mode, self.speculation.depth
        if mode is Mode.OFF:
            return PLAIN
        names = ("draft", "ngram") if mode is Mode.AUTO else (mode.value,)
        for name in names:
            if name in offers:
                return Choice(name, min(depth or self.DEPTHS[name], offers[name].room))
        return PLAIN

    def record(self, event: Round) -> None:
        """Nothing to learn."""
