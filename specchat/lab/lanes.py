"""One side of a race and its record, and what is said about two of them. Pure values: no model, no clock.

Contract: a lane's clock is the sum of its rounds, so whoever shows them may take time in between. `until` gives the
lane as it was at a moment, which is what a replay shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from specchat.engine.rounds import Round
from specchat.engine.stats import ratio

UNSTEADY: Final = 1.25  # on a quiet machine plain passes of the two sides differ by some per cent
ENOUGH: Final = 8  # plain passes: fewer may be the same hiccup


@dataclass(frozen=True, slots=True)
class Moment:
    """The end of one round."""

    seconds: float  # on the lane's own clock
    tokens: tuple[int, ...]
    text: str = ""  # where whoever adds the round has it


class Lane:
    """One reply, round by round."""

    def __init__(self, mode: str, moments: Iterable[Moment] = ()) -> None:
        self.mode = mode
        self.moments = list(moments)
        self.tested = self.accepted = 0
        self._plain: list[float] = []  # seconds of the passes over one token

    def add(self, one: Round, text: str = "") -> None:
        """One more round."""
        self.moments.append(Moment(self.seconds + one.total_seconds, one.tokens, text))
        if not one.proposed:
            self._plain.append(one.target_seconds)
        self.tested += one.tested
        self.accepted += one.accepted

    def end(self, text: str) -> None:
        """Text that was held back until the reply's end."""
        if text and self.moments:
            self.moments[-1] = replace(self.moments[-1], text=self.moments[-1].text + text)

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(token for moment in self.moments for token in moment.tokens)

    @property
    def text(self) -> str:
        return "".join(moment.text for moment in self.moments)

    @property
    def seconds(self) -> float:
        return self.moments[-1].seconds if self.moments else 0.0

    @property
    def passes(self) -> int:
        return len(self.moments)

    @property
    def rate(self) -> float | None:
        """Tokens per second."""
        return ratio(len(self.tokens), self.seconds)

    @property
    def plain_pass(self) -> float | None:
        """Seconds of a pass over one token, the median; None where there were too few of them."""
        return median(self._plain) if len(self._plain) >= ENOUGH else None

    def until(self, seconds: float) -> Lane:
        """The lane as it was then. Of what was tested nothing is known."""
        return Lane(self.mode, (moment for moment in self.moments if moment.seconds <= seconds))


def difference(plain: Sequence[int], other: Sequence[int]) -> int | None:
    """The index of the first token that differs; None where one text is the other's beginning."""
    pairs = zip(plain, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), None)


def unsteady(plain: Lane, other: Lane) -> str:
    """A sentence where the machine itself was slower on one side, which no speed-up may be read off; else ""."""
    one, two = plain.plain_pass, other.plain_pass
    if one is None or two is None or max(one, two) < UNSTEADY * min(one, two):
        return ""
    return (
        f"But the machine was busy: a pass over one token took {1e3 * one:.0f} ms for {plain.mode} "
        f"and {1e3 * two:.0f} ms for {other.mode}."
    )


def outcome(greedy: bool, place: int | None, margin: float) -> str:
    """A sentence about the two texts. `margin`: how far apart plain's two likeliest logits are where they differ."""
    if place is None:
        return "The texts are identical."
    if not greedy:
        return "At this temperature the texts differ by chance; their distribution is the same."
    return (
        f"The texts differ from token {place + 1} on, where plain's two likeliest logits are {margin:.2g} apart: "
        "`specchat verify` tells what width noise explains."
    )
