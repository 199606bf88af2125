"""The output is distributed as the target alone would write it, and the test that says so can fail.

A covering subset of the grid; the whole of it, with 200,000 draws a cell, is tests/long/test_lossless_grid.py. Seeds
are fixed and the clock is virtual, so a cell passes always or never.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from specchat.engine import decoder as decoder_module
from specchat.engine.cache import Logits
from specchat.engine.decoder import Verdict, verify
from specchat.engine.drafters import Continue, Draft, ModelDrafter, Offer, Proposal, always
from specchat.engine.policy import Choice, FixedPolicy, Mode, Speculation
from specchat.engine.sampling import Distribution, Sampler, SamplingSettings
from tests.lossless import CUT, EVERYTHING, PENALISED, Cell, cells, exact, p_value
from tests.scripted_models import ScriptedCache, pair_table

ALPHA = 1e-4
DRAWS = 18_000
GRID: Mapping[str, Cell] = {cell.name: cell for cell in cells()}
COVER = (
    "plain-all",
    "draft-1-cut",
    "draft-3-all",
    "draft-6-penalised",
    "ending-all",
    "greedy-3-all",
    "ngram-4-penalised",
    "mixed-penalised",
    "auto-all",
    "auto-dear-penalised",
    "auto-ngram-all",
    "auto-hopeless-cut",
    "larger-draft-all",
    "smaller-draft-penalised",
)


@pytest.mark.parametrize("name", COVER)
def test_speculation_keeps_the_targets_distribution(name: str) -> None:
    assert p_value(GRID[name], DRAWS) > ALPHA


class SoftlyGreedy(ModelDrafter):
    """Fault: draws the most likely token but claims to have sampled it."""

    def propose(self, kept: Sequence[int], depth: int, sampler: Sampler, worth: Continue = always) -> Draft:
        return super().propose(kept, depth, ArgmaxSampler(sampler), worth)


class ArgmaxSampler(Sampler):
    def __init__(self, real: Sampler) -> None:
        self.settings, self.rng = real.settings, real.rng

    def draw(self, dist: Distribution) -> int:
        return int(dist.ids[0])


class Dropping(ModelDrafter):
    """Fault: a drawn token is dropped because its q was low."""

    def propose(self, kept: Sequence[int], depth: int, sampler: Sampler, worth: Continue = always) -> Draft:
        draft = super().propose(kept, depth, sampler, worth)
        sure = [i for i, proposal in enumerate(draft.proposals) if proposal.q.probability(proposal.token) < 0.4]
        return replace(draft, proposals=draft.proposals[: sure[0]] if sure else draft.proposals)


class Forgetful(FixedPolicy):
    """Fault: every round reuses the random numbers of the first, through the sampler that the test remembered."""

    sampler: Sampler | None = None

    def choose(self, offers: Mapping[str, Offer]) -> Choice:
        if Forgetful.sampler is not None:
            Forgetful.sampler.rng = np.random.default_rng(Forgetful.sampler.settings.seed)
        return super().choose(offers)


class Shifted(ScriptedCache):
    """Fault: each verify row is the one before it."""

    def decode(self, tokens: Sequence[int], n_logits: int) -> Logits:
        rows = super().decode(tokens, n_logits)
        return rows if n_logits < 2 else np.concatenate([rows[:1], rows[:-1]])


def shift(cache: ScriptedCache) -> ScriptedCache:
    cache.__class__ = Shifted
    return cache


def residual_not_normalised(p: Distribution, q: Distribution) -> Distribution:
    size = int(max(p.ids.max(), q.ids.max())) + 1
    excess = np.maximum(p.probabilities - q.dense(size)[p.ids], 0.0)
    excess[-1] += 1.0 - excess.sum()  # where inversion ends when the sums stop short of one
    return Distribution(p.ids, excess)


def late_window(tokens: Sequence[int], settings: SamplingSettings, end: int | None = None) -> list[int]:
    end = len(tokens) if end is None else end
    return list(tokens[max(0, end - 1 - settings.repeat_last_n) : end - 1])


def bonus_from_the_draft(
    proposals: Sequence[Proposal],
    logits: Logits,
    preceding: Sequence[int],
    sampler: Sampler,
    is_eog: Callable[[int], bool],
) -> Verdict:
    verdict = verify(proposals, logits, preceding, sampler, is_eog)
    if not proposals or verdict.accepted < len(proposals):
        return verdict
    return replace(verdict, tokens=(*verdict.tokens[:-1], sampler.draw(proposals[-1].q)))


FAULTS: Mapping[str, tuple[str, Callable[[pytest.MonkeyPatch], None]]] = {
    "residual not renormalised": (
        "draft-3-all",
        lambda patch: patch.setattr(decoder_module, "residual", residual_not_normalised),
    ),
    "bonus token drawn from the draft": (
        "draft-1-all",
        lambda patch: patch.setattr(decoder_module, "verify", bonus_from_the_draft),
    ),
    "penalties one token late": (
        "draft-6-penalised",
        lambda patch: patch.setattr(decoder_module, "window", late_window),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_rule_is_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, plant = FAULTS[fault]
    plant(monkeypatch)
    assert p_value(GRID[name], DRAWS) < ALPHA


@pytest.mark.parametrize("drafter", [SoftlyGreedy, Dropping])
def test_a_drafter_that_misstates_its_draws_is_caught(drafter: type[ModelDrafter]) -> None:
    # A draft that is the target itself: every proposal is accepted, so that only the fault can bias.
    cell = replace(GRID["draft-3-all"], drafter=drafter, likeness=1.0)
    assert p_value(cell, DRAWS) < ALPHA


def test_rows_shifted_by_one_are_caught() -> None:
    assert p_value(GRID["draft-3-all"], DRAWS, wrap=shift) < ALPHA


def test_reused_random_numbers_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Sampler.__init__

    def remember(self: Sampler, settings: SamplingSettings) -> None:
        real(self, settings)
        Forgetful.sampler = self

    monkeypatch.setattr(Sampler, "__init__", remember)
    cell = replace(GRID["draft-3-all"], policy=lambda: Forgetful(Speculation(Mode.DRAFT, 3)))
    assert p_value(cell, DRAWS) < ALPHA


@pytest.mark.parametrize("sampling", [EVERYTHING, PENALISED, CUT])
def test_the_exact_expectation_is_a_distribution(sampling: SamplingSettings) -> None:
    assert exact(pair_table(8, seed=11), sampling).sum() == pytest.approx(1.0)
