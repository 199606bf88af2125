"""Is what the decoder writes distributed as the target alone would write it? Exact expectations, real decoder.

A `Cell` is one configuration: models of a few tokens whose distributions depend on the last two tokens, a drafter, a
policy and sampling settings. Many short independent replies are decoded, and the joint counts of tokens 4 to 7, which
span round boundaries, are compared by chi-square with the exact probabilities of a plain chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from specchat.engine.acceptance import Learned
from specchat.engine.cache import Logits
from specchat.engine.costs import Costs
from specchat.engine.decoder import Decoder
from specchat.engine.drafters import Continue, Draft, Drafter, ModelDrafter, NgramDrafter, Offer, always
from specchat.engine.policy import AdaptivePolicy, Choice, FixedPolicy, Mode, Policy, Speculation
from specchat.engine.sampling import Sampler, SamplingSettings, distribution
from tests.scripted_models import ScriptedCache, VirtualClock, from_table, pair_table

PROMPT = (1, 2, 3, 1, 2)
SKIPPED, TESTED = 3, 4  # tokens before the joint window, and in it
EVERYTHING = SamplingSettings(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
# The penalty looks three tokens back, so that three tokens are the whole state of the chain.
PENALISED = replace(EVERYTHING, repeat_penalty=1.8, repeat_last_n=3)
CUT = SamplingSettings(temperature=0.8, top_k=6, top_p=0.9, min_p=0.05)


@dataclass(frozen=True)
class Cell:
    """One configuration to test."""

    name: str
    policy: Callable[[], Policy]
    n_vocab: int = 8
    draft_vocab: int = 8
    sampling: SamplingSettings = EVERYTHING
    likeness: float = 0.6  # share of the target in the draft's distribution
    drafter: Callable[[ScriptedCache, int], Drafter] = ModelDrafter


class GreedyDrafter(ModelDrafter):
    """Proposes its most likely token, with the one-hot q that this really is."""

    def propose(self, kept: Sequence[int], depth: int, sampler: Sampler, worth: Continue = always) -> Draft:
        return super().propose(kept, depth, GreedySampler(sampler), worth)


class GreedySampler(Sampler):
    def __init__(self, real: Sampler) -> None:
        self.settings = replace(real.settings, temperature=0.0)
        self.rng = real.rng


def ending(context: ScriptedCache, n_vocab: int) -> Drafter:
    """Proposes nothing after some tokens, as a draft model does after those that end a generation."""
    return ModelDrafter(context, n_vocab, lambda token: token % 2 == 0)


class Alternating:
    """Draft, n-gram and plain in turn, at a depth that the past tokens decide."""

    def __init__(self) -> None:
        self.speculation = Speculation()
        self.disturbed = False
        self._round = self._last = 0

    def begin(self, temperature: float, deepest: int | None = None, tokens: int | None = None) -> None:
        """Nothing depends on it."""

    def choose(self, offers: Mapping[str, Offer]) -> Choice:
        self._round += 1
        name = ("draft", "ngram", "plain")[self._round % 3]
        depth = min(1 + self._last % 6, offers[name].room) if name in offers else 0
        return Choice(name if depth else "plain", depth)

    def record(self, event: object) -> None:
        self._last = getattr(event, "tokens", (0,))[-1]

    def judged(self, results: object) -> None:
        """Nothing to learn."""

    def wants(self, drafter: str, _unread: int = 1, /) -> bool:
        return drafter == "draft"

    @property
    def plain_seconds(self) -> float | None:
        return None


def fixed(mode: Mode, depth: int) -> Callable[[], Policy]:
    return lambda: FixedPolicy(Speculation(mode, depth))


def adaptive(mode: Mode = Mode.AUTO, target_slope: float = 0.05) -> Callable[[], Policy]:
    """Auto with early stopping, at costs where drafting pays sometimes."""
    costs = Costs({n: 1.0 + target_slope * (n - 1) for n in (1, 32)}, {1: 0.1, 32: 0.4}, measured=True)
    return lambda: AdaptivePolicy(Speculation(mode), costs, Learned())


def cells() -> Iterator[Cell]:
    """The full grid."""
    samplings = {"all": EVERYTHING, "penalised": PENALISED, "cut": CUT}
    for label, sampling in samplings.items():
        yield Cell(f"plain-{label}", fixed(Mode.OFF, 0), sampling=sampling)
        for depth in range(1, 7):
            yield Cell(f"draft-{depth}-{label}", fixed(Mode.DRAFT, depth), sampling=sampling)
            yield Cell(f"greedy-{depth}-{label}", fixed(Mode.DRAFT, depth), sampling=sampling, drafter=GreedyDrafter)
            yield Cell(f"ngram-{depth}-{label}", fixed(Mode.NGRAM, depth), sampling=sampling)
        yield Cell(f"mixed-{label}", Alternating, sampling=sampling)
        yield Cell(f"auto-{label}", adaptive(), sampling=sampling)
        yield Cell(f"auto-dear-{label}", adaptive(target_slope=0.35), sampling=sampling)
        yield Cell(f"auto-draft-{label}", adaptive(Mode.DRAFT), sampling=sampling)
        yield Cell(f"ending-{label}", fixed(Mode.DRAFT, 5), sampling=sampling, drafter=ending)
        yield Cell(f"auto-ngram-{label}", adaptive(Mode.NGRAM), sampling=sampling)
        yield Cell(f"auto-hopeless-{label}", adaptive(), sampling=sampling, likeness=0.0)
        yield Cell(f"larger-draft-{label}", fixed(Mode.DRAFT, 3), sampling=sampling, draft_vocab=10)
        yield Cell(f"smaller-draft-{label}", fixed(Mode.DRAFT, 3), sampling=sampling, draft_vocab=6)
        yield Cell(f"larger-vocabulary-{label}", fixed(Mode.DRAFT, 4), n_vocab=12, draft_vocab=12, sampling=sampling)
    yield Cell("sixteen-tokens", adaptive(), n_vocab=16, draft_vocab=16)


def p_value(
    cell: Cell, draws: int, seed: int = 7, wrap: Callable[[ScriptedCache], ScriptedCache] = lambda c: c
) -> float:
    """Of the chi-square test of `draws` tokens against the plain chain. `wrap` may plant a fault in the target."""
    target_table = pair_table(cell.n_vocab, seed=11)
    counts = np.zeros((cell.n_vocab,) * TESTED)
    for window in replies(cell, target_table, draws, seed, wrap):
        counts[window] += 1
    expected = exact(target_table, cell.sampling) * counts.sum()
    return chi_square(counts.ravel(), expected.ravel())


def replies(
    cell: Cell, table: NDArray[np.float64], draws: int, seed: int, wrap: Callable[[ScriptedCache], ScriptedCache]
) -> Iterator[tuple[int, ...]]:
    clock = VirtualClock()
    target = wrap(ScriptedCache(from_table(table), cell.n_vocab, clock=clock, cost=lambda n: 1.0 + 0.05 * (n - 1)))
    draft = ScriptedCache(draft_script(cell, table), cell.draft_vocab, clock=clock, cost=lambda _: 0.1)
    drafters: dict[str, Drafter] = {"draft": cell.drafter(draft, cell.n_vocab), "ngram": NgramDrafter()}
    decoder = Decoder(target, drafters, cell.policy(), is_eog=lambda _: False, clock=clock)
    length = SKIPPED + TESTED + 2  # a little further, so that the window is not always cut by the end
    for reply in range(draws // length):
        target.rollback(0)
        target.decode(PROMPT[:-1], 0)
        for drafter in drafters.values():
            list(drafter.read(PROMPT))
        written: list[int] = []
        sampling = replace(cell.sampling, seed=seed * 1_000_003 + reply)
        for event in decoder.run(PROMPT, sampling, length):
            written.extend(event.tokens)
        yield tuple(written[SKIPPED : SKIPPED + TESTED])


def draft_script(cell: Cell, target: NDArray[np.float64]) -> Callable[[Sequence[int]], NDArray[np.float64]]:
    size = max(cell.draft_vocab, cell.n_vocab)
    mixed = pair_table(size, seed=23)
    n = cell.n_vocab
    mixed[:n, :n, :n] = cell.likeness * target + (1.0 - cell.likeness) * mixed[:n, :n, :n]
    mixed = mixed[..., : cell.draft_vocab]
    return from_table(mixed / mixed.sum(axis=-1, keepdims=True))


def exact(table: NDArray[np.float64], sampling: SamplingSettings) -> NDArray[np.float64]:
    """Joint probabilities of the TESTED tokens after the first SKIPPED, by following every state of the chain."""
    n = table.shape[0]
    script = from_table(table)

    def row(state: tuple[int, ...]) -> NDArray[np.float64]:
        with np.errstate(divide="ignore"):
            logits: Logits = np.log(script(state)).astype(np.float32)
        return distribution(logits, sampling, state).dense(n)

    rows = np.array([row(state) for state in product(range(n), repeat=3)]).reshape((n,) * 4)
    now = np.zeros((n,) * 3)
    now[PROMPT[-3:]] = 1.0
    for _ in range(SKIPPED):
        now = np.einsum("abc,abcd->bcd", now, rows)
    joint: NDArray[np.float64] = np.einsum("abc,abcd,bcde,cdef,defg->defg", now, rows, rows, rows, rows, optimize=True)
    return joint


def chi_square(observed: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    """p-value; cells expected fewer than five times are pooled, a count where none is possible is impossible."""
    if observed[expected <= 0.0].any():
        return 0.0
    rare = expected < 5.0
    observed = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    kept = expected > 0.0
    statistic = ((observed[kept] - expected[kept]) ** 2 / expected[kept]).sum()
    return float(chi2.sf(statistic, kept.sum() - 1))
