"""Is the output what the target alone would have written? Checked on the user's own pair and machine.

Three questions. How far are llama.cpp's own logits for a row from themselves at another width (width.py)? At
temperature 0, is every drafter's text plain decoding's, up to places where two tokens are so close that this noise
decides? At temperature 1, are the tokens drawn from the target's distribution?

Contract: `Verification.run` yields progress; `verdict` then answers with figures and failures.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

import numpy as np

from specchat.engine import exact
from specchat.engine.cache import Cache, Logits
from specchat.engine.costs import Costs
from specchat.engine.decoder import Decoder
from specchat.engine.drafters import all_drafters, common_prefix
from specchat.engine.policy import AdaptivePolicy
from specchat.engine.sampling import SamplingSettings
from specchat.lab import width
from specchat.lab.prompts import Prompt
from specchat.lab.rig import Rig
from specchat.lab.runs import PLAIN, intact, read, speculation
from specchat.lab.sampled import Sampled, SampledCheck
from specchat.lab.width import Noise
from specchat.pairs.library import Step

GREEDY: Final = SamplingSettings(temperature=0.0)
SAMPLED: Final = SamplingSettings(temperature=1.0)
DRAFT_DEPTHS: Final = (1, 2, 3, 4, 6, 8)
NGRAM_DEPTHS: Final = (3, 7, 15)
SAMPLED_MODES: Final = ("draft:4", "ngram:7", "auto")
EXACT_EVERY: Final = 4  # one prompt in so many is written in exact mode too
PRICE_PASSES: Final = 24


def modes(rig: Rig) -> tuple[str, ...]:
    """Every drafter and depth, and auto."""
    drafted = [f"draft:{depth}" for depth in DRAFT_DEPTHS] if rig.draft else []
    return (*drafted, *(f"ngram:{depth}" for depth in NGRAM_DEPTHS), "auto")


class Watched:
    """A cache that notes how far the two likeliest tokens lie apart in every row it gives."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self.gaps: list[float] = []

    @property
    def n_ctx(self) -> int:
        return self._cache.n_ctx

    @property
    def n_vocab(self) -> int:
        return self._cache.n_vocab

    @property
    def tokens(self) -> Sequence[int]:
        return self._cache.tokens

    def decode(self, tokens: Sequence[int], n_logits: int) -> Logits:
        logits = self._cache.decode(tokens, n_logits)
        for row in logits:
            second, first = np.partition(row, -2)[-2:]
            self.gaps.append(float(first - second))
        return logits

    def rollback(self, n_tokens: int) -> None:
        self._cache.rollback(n_tokens)


class Writer:
    """Writes texts with one policy for each mode, as a conversation would."""

    def __init__(self, rig: Rig, costs: Costs, target: Cache | None = None) -> None:
        """`target` stands in for the rig's own cache (another kind over the same model)."""
        self._rig, self._costs = rig, costs
        self.target = target or rig.target
        self._policies: dict[str, AdaptivePolicy] = {}

    def write(self, prompt: Sequence[int], mode: str, sampling: SamplingSettings, n: int) -> tuple[int, ...]:
        """The reply's tokens. Raises Cancelled."""
        return self._decode(self.target, prompt, mode, sampling, n)

    def plain(self, prompt: Sequence[int], n: int) -> tuple[tuple[int, ...], list[float]]:
        """The greedy reply, and the gap between the two likeliest tokens at each of its places."""
        watched = Watched(self.target)
        tokens = self._decode(watched, prompt, PLAIN, GREEDY, n)
        return tokens, watched.gaps

    def _decode(
        self, target: Cache, prompt: Sequence[int], mode: str, sampling: SamplingSettings, n: int
    ) -> tuple[int, ...]:
        policy = self._policies.setdefault(mode, AdaptivePolicy(speculation(mode), self._costs))
        policy.begin(sampling.temperature, self._rig.target.rollback_limit, n)
        # One prompt is written to many times over: it is read once.
        for cache in (self.target, self._rig.draft):
            if cache is not None:
                cache.rollback(common_prefix(cache.tokens, prompt[:-1]))
        if unread := prompt[len(self.target.tokens) : -1]:
            self.target.decode(unread, 0)
        model = self._rig.target.model
        drafters = all_drafters(self._rig.draft, model.n_vocab, model.is_eog)
        read(drafters.values(), policy, prompt)
        decoder = Decoder(target, drafters, policy, is_eog=model.is_eog, max_depth=self._rig.target.rollback_limit)
        room = self.target.n_ctx - len(prompt)
        tokens = tuple(t for one in decoder.run(prompt, sampling, min(n, room)) for t in one.tokens)
        intact(decoder)
        return tokens


# ---- temperature 0


@dataclass(frozen=True, slots=True)
class Text:
    """One greedy text against plain decoding's."""

    prompt: str
    mode: str
    tokens: int
    differs_at: int | None  # place of the first other token; None: the same text
    gap: float = 0.0  # between plain's two likeliest logits there


def compare(prompt: str, mode: str, plain: Sequence[int], gaps: Sequence[float], written: Sequence[int]) -> Text:
    """Where a text leaves plain's, and how close a call that was."""
    place = next((i for i, (a, b) in enumerate(zip(plain, written, strict=False)) if a != b), None)
    if place is None and len(plain) != len(written):
        place = min(len(plain), len(written))
    gap = 0.0 if place is None else gaps[min(place, len(gaps) - 1)]
    return Text(prompt, mode, len(written), place, gap)


# ---- all of it


@dataclass(frozen=True, slots=True)
class Verdict:
    """Everything that was found. `failures` are sentences; none means that the output is the target's own."""

    noise: Noise
    noises: tuple[Noise, ...]
    texts: tuple[Text, ...]
    sampled: tuple[tuple[str, Sampled], ...]  # (mode, one order's check)
    exact_obstacle: str | None
    exact_noise: Noise | None  # None where exact mode is not possible
    exact_texts: tuple[Text, ...]
    exact_price: float | None  # seconds of a one-token pass over those of the usual cache

    @property
    def bound(self) -> float:
        """The gap between two logits that width noise can close."""
        return 2.0 * self.noise.max_difference

    @property
    def differing(self) -> tuple[Text, ...]:
        return tuple(text for text in self.texts if text.differs_at is not None)

    @property
    def failures(self) -> tuple[str, ...]:
        return (*self._greedy_failures(), *self._sampled_failures(), *self._exact_failures())

    def _greedy_failures(self) -> Iterator[str]:
        for text in self.differing:
            if text.gap >= self.bound:
                yield (
                    f"{text.mode} on {text.prompt} leaves plain's text at token {text.differs_at}, where the two "
                    f"likeliest logits are {text.gap:.3g} apart and noise explains less than {self.bound:.3g}"
                )

    def _sampled_failures(self) -> Iterator[str]:
        for mode, check in self.sampled:
            if not check.passed:
                yield f"{mode}, {check.order}: {check.statistic:.1%} of the probability moved (p = {check.p_value:.1g})"

    def _exact_failures(self) -> Iterator[str]:
        for text in self.exact_texts:
            if text.differs_at is not None:
                yield f"in exact mode {text.mode} on {text.prompt} leaves plain's text at token {text.differs_at}"
        if self.exact_noise is not None and not self.exact_noise.exact:
            yield f"in exact mode {self.exact_noise.rows - self.exact_noise.identical} rows are not the same bits"


class Verification:
    """One run of all checks; texts have `n` tokens."""

    def __init__(self, rig: Rig, prompts: Sequence[Prompt], n: int, seed: int = 0) -> None:
        self._rig, self._n, self._seed = rig, n, seed
        self._prompts = [(prompt.name, rig.prompt(prompt.text)) for prompt in prompts]
        self._sample = rig.target.model.tokenize(exact.sample_text())
        self._noises: list[Noise] = []
        self._texts: list[Text] = []
        self._exact_noises: list[Noise] = []
        self._exact_texts: list[Text] = []
        self._sampled: list[tuple[str, Sampled]] = []
        self._obstacle: str | None = None
        self._price: float | None = None
        self._modes = modes(rig)
        self._sampled_modes = [mode for mode in SAMPLED_MODES if rig.draft or not mode.startswith("draft")]
        texts = len(prompts) + len(prompts[::EXACT_EVERY])
        self._left = self._total = texts * (1 + len(self._modes)) + len(prompts) * len(self._sampled_modes)

    def verdict(self) -> Verdict:
        """What was found, once `run` is through."""
        return Verdict(
            noise=width.overall(self._noises),
            noises=tuple(self._noises),
            texts=tuple(self._texts),
            sampled=tuple(self._sampled),
            exact_obstacle=self._obstacle,
            exact_noise=None if self._obstacle else width.overall(self._exact_noises),
            exact_texts=tuple(self._exact_texts),
            exact_price=self._price,
        )

    def run(self) -> Iterator[Step]:
        """Measure everything. Raises Cancelled."""
        yield Step("measuring this machine")
        costs = self._rig.calibrate()
        yield from self._noise(self._rig.target, self._noises, "width noise")
        yield from self._greedy(Writer(self._rig, costs), self._prompts, self._texts, "temperature 0")
        yield from self._draws(Writer(self._rig, costs))
        yield Step("exact mode: loading its cache")
        with self._rig.exact_target() as context:
            self._obstacle = exact.obstacle(context)
            if self._obstacle is not None:
                return
            yield from self._noise(context, self._exact_noises, "exact mode, width noise")
            few = self._prompts[::EXACT_EVERY]
            yield from self._greedy(Writer(self._rig, costs, context), few, self._exact_texts, "exact mode")
            yield Step("exact mode: its price")
            self._price = price(self._rig.target, context, self._sample)

    def _noise(self, context: Cache, noises: list[Noise], text: str) -> Iterator[Step]:
        for noise in width.measure(context, self._sample):
            noises.append(noise)
            yield Step(f"{text}, {noise.length:,} tokens in")

    def _step(self, text: str) -> Step:
        """One more text begins; one total for all of them tells how long the whole will take."""
        self._left -= 1
        return Step(text, self._total - self._left - 1, self._total, in_bytes=False)

    def _greedy(
        self, writer: Writer, prompts: Sequence[tuple[str, list[int]]], texts: list[Text], what: str
    ) -> Iterator[Step]:
        for name, prompt in prompts:
            yield self._step(f"{what}, {name}, plain")
            plain, gaps = writer.plain(prompt, self._n)
            for mode in self._modes:
                yield self._step(f"{what}, {name}, {mode}")
                texts.append(compare(name, mode, plain, gaps, writer.write(prompt, mode, GREEDY, self._n)))

    def _draws(self, writer: Writer) -> Iterator[Step]:
        for mode in self._sampled_modes:
            check = SampledCheck(self._rig.target, self._rig.draft, self._seed)
            for i, (name, prompt) in enumerate(self._prompts):
                yield self._step(f"temperature 1, {mode}, {name}")
                sampling = replace(SAMPLED, seed=self._seed + i)
                check.add(prompt, writer.write(prompt, mode, sampling, self._n), sampling)
            self._sampled += [(mode, result) for result in check.results()]


def price(usual: Cache, exact_cache: Cache, tokens: Sequence[int]) -> float:
    """Seconds of a one-token pass in exact mode over those in the usual one, alternating; some hundred tokens in."""
    seconds: tuple[list[float], list[float]] = ([], [])
    caches = (usual, exact_cache)
    start = min(256, usual.n_ctx - 1, len(tokens) - 1)
    for cache in caches:
        cache.rollback(0)
        cache.decode(tokens[:start], 0)
    for _ in range(PRICE_PASSES):
        for cache, taken in zip(caches, seconds, strict=True):
            began = time.perf_counter()
            cache.decode(tokens[start : start + 1], 1)
            taken.append(time.perf_counter() - began)
            cache.rollback(start)
    return median(seconds[1]) / median(seconds[0])
