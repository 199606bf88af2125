"""Are the tokens of a text drawn from the target's own distribution?

A text written speculatively is read again by the target, which gives the distribution
p_i that its i-th token should have been drawn from. Sort the vocabulary; then u_i = (mass of p_i before the token) +
(a fresh uniform number) x (the token's own mass) is uniform on [0, 1] and independent of all earlier ones, whatever
the texts are, if and only if the tokens were drawn so (Rosenblatt 1952, "Remarks on a multivariate transformation").
The order decides which fault shows best: sorted by q/p, what the draft prefers comes first, and a decoder that lets
the draft's taste through moves the u_i towards 0. Uniformity is tested by Kolmogorov and Smirnov's statistic, which is
itself the share of probability that was moved.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from specchat.engine.cache import Cache
from specchat.engine.sampling import Distribution, SamplingSettings, distribution, window

ALPHA: Final = 1e-4  # how often a faultless decoder fails one check


@dataclass(frozen=True, slots=True)
class Sampled:
    """The sampled check of one order."""

    order: str
    tokens: int
    statistic: float  # Kolmogorov-Smirnov: the share of probability that lies elsewhere than it should
    p_value: float

    @property
    def detects(self) -> float:
        """The smallest statistic that would have failed."""
        return critical(self.tokens)

    @property
    def passed(self) -> bool:
        return self.p_value >= ALPHA


class SampledCheck:
    """Collects u_i of texts that were written speculatively; see the module."""

    def __init__(self, target: Cache, draft: Cache | None, seed: int) -> None:
        self._target, self._draft = target, draft
        self._rng = np.random.default_rng(seed)
        self._places: dict[str, list[float]] = {}

    def add(self, prompt: Sequence[int], written: Sequence[int], sampling: SamplingSettings) -> None:
        """Read one text again."""
        whole = [*prompt, *written]
        ps = _distributions(self._target, whole, len(written), sampling)
        qs: Sequence[Distribution | None] = [None] * len(written)
        if self._draft is not None:
            qs = _distributions(self._draft, whole, len(written), sampling)
        for token, p, q in zip(written, ps, qs, strict=True):
            self._add("likeliest first", p, token, p.probabilities)
            if q is not None:
                dense = q.dense(int(max(q.ids.max(), p.ids.max())) + 1)
                self._add("the draft's favourites first", p, token, dense[p.ids] / np.maximum(p.probabilities, 1e-300))

    def _add(self, order: str, p: Distribution, token: int, key: NDArray[np.float64]) -> None:
        self._places.setdefault(order, []).append(place(p, token, key, self._rng.random()))

    def results(self) -> tuple[Sampled, ...]:
        """One for each order."""
        return tuple(_tested(order, us) for order, us in self._places.items())


def _distributions(cache: Cache, whole: Sequence[int], n: int, sampling: SamplingSettings) -> list[Distribution]:
    """Those that the last `n` tokens of a text should have been drawn from."""
    cache.rollback(0)
    cache.decode(whole[: -n - 1], 0)
    logits = cache.decode(whole[-n - 1 : -1], n)
    first = len(whole) - n
    return [distribution(row, sampling, window(whole, sampling, first + i)) for i, row in enumerate(logits)]


def place(p: Distribution, token: int, key: NDArray[np.float64], uniform: float) -> float:
    """u of one token: uniform on [0, 1] if `token` was drawn from `p`. `key` sorts p's tokens, highest first.

    1 for a token that p does not have at all.
    """
    before = p.probability(token)
    if before == 0.0:
        return 1.0
    own = key[p.ids == token][0]
    # Of tokens with one key those with lower ids come first.
    ahead = (key > own) | ((key == own) & (p.ids < token))
    return float(p.probabilities[ahead].sum() + uniform * before)


def _tested(order: str, us: Sequence[float]) -> Sampled:
    statistic = kolmogorov_smirnov(us)
    return Sampled(order, len(us), statistic, kolmogorov_p(statistic, len(us)))


def kolmogorov_smirnov(us: Sequence[float]) -> float:
    """The greatest distance between the empirical distribution of `us` and the uniform one."""
    ordered = np.sort(np.asarray(us))
    steps = np.arange(len(us) + 1) / len(us)
    return float(max(np.abs(ordered - steps[1:]).max(), np.abs(ordered - steps[:-1]).max()))


def kolmogorov_p(statistic: float, n: int) -> float:
    """How often `n` uniform numbers lie at least that far off (Stephens 1970's form of Kolmogorov's limit)."""
    x = (math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n)) * statistic
    if x < 0.3:
        return 1.0
    terms = (math.copysign(math.exp(-2.0 * k * k * x * x), k % 2 - 0.5) for k in range(1, 20))
    return min(1.0, 2.0 * sum(terms))


def critical(n: int, alpha: float = ALPHA) -> float:
    """The statistic whose p-value is `alpha`."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2.0
        low, high = (middle, high) if kolmogorov_p(middle, n) > alpha else (low, middle)
    return high
