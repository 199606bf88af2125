"""How likely the next proposals are to be accepted, learned from the rounds so far.

Contract: estimates follow a change of subject within some tens of tokens and survive from reply to reply. Every
figure is a moving average that is shrunk towards a coarser one where little was seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from specchat.engine.drafters import NgramDrafter, Offer

LONG: Final = 2048.0  # half-life in judged proposals: a pair's character, over many subjects
SLOW: Final = 256.0  # precise while the subject lasts
FAST: Final = 16.0  # sees a change of subject within some tens of tokens
SURPRISE: Final = 2.5  # standard errors by which the fast average must differ before the slow one gives way
SHRINK: Final = 6.0  # observations' worth of belief in the coarser figure


class Average:
    """Sum and weight of an exponentially forgotten mean."""

    def __init__(self, half_life: float) -> None:
        self._keep = 0.5 ** (1.0 / half_life)
        self.hits = self.trials = 0.0

    def add(self, hit: float) -> None:
        self.hits = self.hits * self._keep + hit
        self.trials = self.trials * self._keep + 1.0


class Rate:
    """A success rate that is precise in steady times and quick after a change, with a prior of some trials' weight.

    A slow average holds the estimate; where a fast one differs by more than chance allows, it restarts from there.
    """

    def __init__(self, prior: float, weight: float = SHRINK, half_life: float = SLOW, known: float = 0.0) -> None:
        """`known` is the number of trials, over many subjects, that the prior is known from."""
        self._prior = self._belief = prior
        self._weight = weight
        self._long, self._slow, self._fast = Average(LONG), Average(half_life), Average(FAST)
        self._long.hits, self._long.trials = known * prior, known

    def add(self, hit: float) -> None:
        for average in (self._long, self._slow, self._fast):
            average.add(hit)
        if self._surprised():
            self._slow.hits, self._slow.trials = self._fast.hits, self._fast.trials

    def value(self, prior: float | None = None) -> float:
        belief = self._belief if prior is None else prior
        return (self._slow.hits + self._weight * belief) / (self._slow.trials + self._weight)

    def usual(self, prior: float | None = None) -> float:
        """What it comes to over many subjects."""
        belief = self._prior if prior is None else prior
        return (self._long.hits + self._weight * belief) / (self._long.trials + self._weight)

    @property
    def known(self) -> float:
        """Trials that what is usual rests on."""
        return self._long.trials

    def renew(self) -> None:
        """Another subject begins: believe what is usual, until some tens of trials tell better."""
        trials = min(self._slow.trials, FAST)
        self._belief = self.usual()
        self._slow.hits, self._slow.trials = trials * self._belief, trials
        self._fast = Average(FAST)

    def _surprised(self) -> bool:
        slow, fast = self._slow, self._fast
        # (Renewed, the fast average is empty: its first few trials tell nothing yet.)
        if slow.trials < 2.0 * fast.trials or fast.trials < FAST / 2.0:
            return False
        mean = (slow.hits + 0.5) / (slow.trials + 1.0)
        error = math.sqrt(mean * (1.0 - mean) / fast.trials)
        return abs(fast.hits / fast.trials - mean) > SURPRISE * error


@dataclass(frozen=True, slots=True)
class Judged:
    """One judged proposal: its place in the round (None outside one), the draft's confidence before it was drawn,
    and the outcome, or its probability where the two models' distributions were compared directly."""

    position: int | None
    confidence: float
    accepted: float


@dataclass(frozen=True, slots=True)
class Learned:
    """A pair's acceptance over many subjects: the starting point of the next session."""

    pooled: float = 0.6  # of unknown pairs: enough to be tried where drafting is cheap, soon corrected
    bins: tuple[float, ...] = ()  # for each bin of confidence; empty: as pooled
    trials: float = 0.0  # judged proposals that this rests on


class DraftAcceptance:
    """The draft model's: by position in the round, and by the draft's own confidence.

    A draft's probability is not its acceptance probability: an independent draft is right when it is sure, a quantised
    copy of the target is right at any confidence. So the map from one to the other is learned, bin by bin.
    """

    # Upper edges; finest near 1, where drafts spend most of their time.
    BINS: Final = (0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.96, 1.01)

    DEPTH: Final = 16  # positions that are told apart

    def __init__(self, learned: Learned) -> None:
        bins = learned.bins or (learned.pooled,) * len(self.BINS)
        self._pooled = Rate(learned.pooled, known=learned.trials)
        # Positions differ little, so each needs much evidence of its own.
        share = learned.trials / self.DEPTH
        self._positions = [Rate(learned.pooled, weight=16.0, known=share) for _ in range(self.DEPTH)]
        self._bins = [Rate(rate, known=learned.trials / len(bins)) for rate in bins]
        # What a bin differed from the pooled rate by, last time.
        self._offsets = [rate - learned.pooled for rate in bins]
        self._rates: NDArray[np.float64] | None = None  # by position, until something is added

    @property
    def evidence(self) -> float:
        """Judged proposals that what is known of the pair rests on, whatever the subject."""
        return self._pooled.known

    @property
    def pooled(self) -> float:
        return self._pooled.value()

    def renew(self) -> None:
        """Another subject begins."""
        self._rates = None
        for rate in (self._pooled, *self._positions, *self._bins):
            rate.renew()

    def add(self, judged: Sequence[Judged]) -> None:
        self._rates = None
        for one in judged:
            self._pooled.add(one.accepted)
            # What was judged outside a round tells of every position, or an unlucky streak at one would stay there.
            for rate in self._positions if one.position is None else (self._at(one.position),):
                rate.add(one.accepted)
            self._bins[self._bin(one.confidence)].add(one.accepted)

    def rates(self, depth: int) -> NDArray[np.float64]:
        """Acceptance of the proposals at positions 0 .. depth - 1 (at most DEPTH), given that the target got there."""
        if self._rates is None:
            pooled = self.pooled
            self._rates = np.array([rate.value(pooled) for rate in self._positions])
        return self._rates[:depth]

    def given(self, confidence: float) -> float:
        """Acceptance of a proposal that the draft is this sure of, before it is drawn."""
        return self._bin_value(self._bin(confidence))

    def learned(self) -> Learned:
        usual = self._pooled.usual()
        bins = tuple(self._bins[i].usual(self._expected(i, usual)) for i in range(len(self._bins)))
        return Learned(usual, bins, self._pooled.known)

    def _at(self, position: int) -> Rate:
        return self._positions[min(position, self.DEPTH - 1)]

    def _bin_value(self, index: int) -> float:
        return self._bins[index].value(self._expected(index, self.pooled))

    def _expected(self, index: int, pooled: float) -> float:
        return min(max(pooled + self._offsets[index], 0.0), 1.0)

    def _bin(self, confidence: float) -> int:
        return next(i for i, edge in enumerate(self.BINS) if confidence < edge or edge > 1.0)


class Promise:
    """How much of what was expected of rounds came true, over the last few of them; at most 1."""

    KEEP: Final = 0.8  # a round: a change of task shows within some rounds
    BELIEF: Final = 6.0  # tokens that are taken to have come as expected

    def __init__(self) -> None:
        self._expected = self._came = 0.0

    def add(self, expected: float, came: float) -> None:
        """Tokens beyond the one that every round brings."""
        self._expected = self._expected * self.KEEP + expected
        self._came = self._came * self.KEEP + came

    @property
    def kept(self) -> float:
        return min(1.0, (self._came + self.BELIEF) / (self._expected + self.BELIEF))


class NgramAcceptance:
    """The n-gram look-up's, by the length of the match that a proposal continues and by where the match lies.

    The i-th proposal after a match of m tokens continues, once reached, a match of m + i. Matches with what was there
    before the reply began are quotations, and go on; matches within the reply itself are turns of phrase, and mostly
    don't. Positions are not independent, as the product over them assumes: what the rounds really brought corrects it.
    All of it is one reply's: whether there is anything to copy is a matter of the task.
    """

    EDGES: Final = (3, 4, 5, 6, 8, 12, 16, 32)
    _BUCKETS: Final = np.searchsorted(
        EDGES, np.arange(EDGES[-1] + NgramDrafter.LONGEST), side="right"
    )  # [m] of m tokens
    # As 42 replies of a 135M model to 21 prompts had them, at temperature 0 and at 1; soon measured. A certain proposal
    # is accepted with the target's own probability of it: copying ends sooner, the hotter the sampling is.
    QUOTATION: Final = (
        np.array((0.55, 0.65, 0.75, 0.8, 0.85, 0.92, 0.94, 0.96, 0.97)),
        np.array((0.5, 0.65, 0.7, 0.75, 0.78, 0.8, 0.82, 0.85, 0.9)),
    )
    PHRASE: Final = (
        np.array((0.45, 0.45, 0.5, 0.5, 0.5, 0.55, 0.6, 0.7, 0.95)),
        np.array((0.45, 0.45, 0.5, 0.55, 0.6, 0.6, 0.65, 0.7, 0.9)),
    )
    BELIEF: Final = 6.0  # observations' worth
    HALF_LIFE: Final = 64.0  # observations

    def __init__(self, temperature: float = 0.0) -> None:
        """Where little was seen, what is usual at this temperature is believed."""
        hot = min(temperature, 1.0)
        usual = {True: self.QUOTATION, False: self.PHRASE}
        self._values = {kind: (1.0 - hot) * at_0 + hot * at_1 for kind, (at_0, at_1) in usual.items()}
        self._rates = {
            kind: [Rate(float(prior), self.BELIEF, self.HALF_LIFE) for prior in priors]
            for kind, priors in self._values.items()
        }
        self._promises = {kind: Promise() for kind in usual}

    def add(self, offer: Offer, judged: Sequence[bool]) -> None:
        """The outcomes of the first proposals of an offer, in order."""
        rates, values = self._rates[offer.quotes], self._values[offer.quotes]
        for bucket, accepted in zip(self._buckets(offer, len(judged)), judged, strict=True):
            rates[bucket].add(float(accepted))
            values[bucket] = rates[bucket].value()

    def add_round(self, offer: Offer, proposed: int, accepted: int) -> None:
        """A round of this offer, of which `accepted` of `proposed` tokens were kept."""
        expected = float(expected_tokens(self.rates(offer, proposed))[-1]) - 1.0
        self._promises[offer.quotes].add(expected, accepted)
        self.add(offer, [i < accepted for i in range(min(accepted + 1, proposed))])

    def rates(self, offer: Offer, depth: int) -> NDArray[np.float64]:
        """Acceptance of the proposals at positions 0 .. depth - 1 of what is offered."""
        return self._values[offer.quotes][self._buckets(offer, depth)]

    def _buckets(self, offer: Offer, depth: int) -> NDArray[np.intp]:
        """The lengths of the match that each proposal continues, by bucket."""
        start = min(offer.match, self.EDGES[-1])
        return self._BUCKETS[start : start + depth]

    def expected(self, offer: Offer, depth: int) -> NDArray[np.float64]:
        """Expected tokens of a round of 0 .. depth of the proposals on offer."""
        return 1.0 + (expected_tokens(self.rates(offer, depth)) - 1.0) * self._promises[offer.quotes].kept


def expected_tokens(rates: NDArray[np.float64]) -> NDArray[np.float64]:
    """Expected tokens of a round for every depth 0 .. len(rates): 1 + sum over i of the product of a_1 .. a_i."""
    return np.cumsum(np.concatenate(([1.0], np.cumprod(rates))))
