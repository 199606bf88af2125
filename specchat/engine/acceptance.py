"""How likely the next proposals are to be accepted, learned from the rounds so far.

Contract: estimates follow a change of subject within some tens of tokens and survive from reply to reply. Every
figure is a moving average that is shrunk towards a coarser one where little was seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

HALF_LIFE: Final = 32.0  # judged proposals after which an observation counts half
SHRINK: Final = 6.0  # observations' worth of belief in the coarser figure


class Rate:
    """An exponentially forgotten success rate: hits over trials, with a prior of some trials' weight."""

    def __init__(self, prior: float, weight: float = SHRINK, half_life: float = HALF_LIFE) -> None:
        self._prior = prior
        self._weight = weight
        self._keep = 0.5 ** (1.0 / half_life)
        self._hits = self._trials = 0.0

    @property
    def trials(self) -> float:
        return self._trials

    def add(self, hit: float) -> None:
        self._hits = self._hits * self._keep + hit
        self._trials = self._trials * self._keep + 1.0

    def value(self, prior: float | None = None) -> float:
        belief = self._prior if prior is None else prior
        return (self._hits + self._weight * belief) / (self._trials + self._weight)


@dataclass(frozen=True, slots=True)
class Judged:
    """One judged proposal: its place in the round (None outside one), the draft's confidence before it was drawn,
    and the outcome, or its probability where the two models' distributions were compared directly."""

    position: int | None
    confidence: float
    accepted: float


@dataclass(frozen=True, slots=True)
class Learned:
    """A pair's acceptance as the last session left it: the starting point of the next one."""

    pooled: float = 0.6  # of unknown pairs: enough to be tried where drafting is cheap, soon corrected
    bins: tuple[float, ...] = ()  # for each bin of confidence; empty: as pooled


class DraftAcceptance:
    """The draft model's: by position in the round, and by the draft's own confidence.

    A draft's probability is not its acceptance probability: an independent draft is right when it is sure, a quantised
    copy of the target is right at any confidence. So the map from one to the other is learned, bin by bin.
    """

    # Upper edges; finest near 1, where drafts spend most of their time.
    BINS: Final = (0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.96, 1.01)

    DEPTH: Final = 16  # positions that are told apart

    def __init__(self, learned: Learned) -> None:
        self._pooled = Rate(learned.pooled)
        self._positions = [Rate(learned.pooled) for _ in range(self.DEPTH)]
        # Bins are visited less often than the whole, so they forget more slowly.
        self._bins = [Rate(learned.pooled, half_life=2 * HALF_LIFE) for _ in self.BINS]
        # What a bin differed from the pooled rate by, last time.
        self._offsets = [rate - learned.pooled for rate in learned.bins] or [0.0 for _ in self.BINS]

    @property
    def pooled(self) -> float:
        return self._pooled.value()

    def add(self, judged: Sequence[Judged]) -> None:
        for one in judged:
            self._pooled.add(one.accepted)
            if one.position is not None:
                self._positions[min(one.position, self.DEPTH - 1)].add(one.accepted)
            self._bins[self._bin(one.confidence)].add(one.accepted)

    def at(self, position: int) -> float:
        """Acceptance of the proposal at `position` (from 0), given that the target got that far."""
        return self._positions[min(position, self.DEPTH - 1)].value(self.pooled)

    def given(self, confidence: float) -> float:
        """Acceptance of a proposal that the draft is this sure of, before it is drawn."""
        return self._bin_value(self._bin(confidence))

    def learned(self) -> Learned:
        return Learned(self.pooled, tuple(self._bin_value(i) for i in range(len(self._bins))))

    def _bin_value(self, index: int) -> float:
        return self._bins[index].value(min(max(self.pooled + self._offsets[index], 0.0), 1.0))

    def _bin(self, confidence: float) -> int:
        return next(i for i, edge in enumerate(self.BINS) if confidence < edge or edge > 1.0)


class NgramAcceptance:
    """The n-gram look-up's, by the length of the match that a proposal continues.

    The i-th proposal after a match of m tokens continues, once reached, a match of m + i.
    """

    EDGES: Final = (4, 8, 16, 32)

    def __init__(self) -> None:
        # Short matches are mostly chance in prose, long ones mostly copies; both are soon measured.
        self._rates = [Rate(prior) for prior in (0.3, 0.5, 0.7, 0.85, 0.9)]

    def add(self, match: int, judged: Sequence[bool]) -> None:
        for i, accepted in enumerate(judged):
            self._rates[self._bucket(match + i)].add(float(accepted))

    def at(self, match: int, position: int) -> float:
        return self._rates[self._bucket(match + position)].value()

    def _bucket(self, match: int) -> int:
        return sum(match >= edge for edge in self.EDGES)


def expected_tokens(rates: Sequence[float]) -> list[float]:
    """Expected tokens of a round for every depth 0 .. len(rates): 1 + sum over i of the product of a_1 .. a_i."""
    expected, reach = [1.0], 1.0
    for rate in rates:
        reach *= rate
        expected.append(expected[-1] + reach)
    return expected
