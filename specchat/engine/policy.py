"""Which drafter, and how deep: decided before every round.

Contract: `Policy.choose` is asked once a round and answers with a `Choice` (depth 0 is plain decoding);
`Policy.record` is told what the round did and what it cost. The past may decide the depth, never the random numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

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
    """What the next round does. `reason` is one short sentence for the status line, with numbers where there are any."""

    drafter: str  # "plain", "draft" or "ngram"
    depth: int
    reason: str = ""


class Policy(Protocol):
    """Decides each round's drafter and depth."""

    speculation: Speculation

    def choose(self, available: dict[str, int]) -> Choice:
        """Answer for the next round; `available` maps each usable drafter to the most it can propose now."""

    def record(self, event: Round) -> None:
        """Learn from a finished round."""
