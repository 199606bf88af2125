"""Measured costs: timed within a budget, kept between sessions, and never a reason to fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from specchat.engine.acceptance import Learned
from specchat.engine.calibration import calibrate
from specchat.engine.costs import WIDTHS, Costs
from specchat.worker.measured import Measured, identity
from tests.scripted_models import ScriptedCache, VirtualClock, deterministic


def slow(clock: VirtualClock, seconds: float) -> ScriptedCache:
    return ScriptedCache(deterministic([1, 2], 4), 4, clock=clock, cost=lambda n: seconds * (0.5 + 0.5 * n))


def test_every_width_is_timed_where_there_is_time() -> None:
    clock = VirtualClock()
    costs = calibrate(slow(clock, 0.001), slow(clock, 0.0001), clock=clock)
    assert set(costs.target) == set(WIDTHS)
    assert costs.target[32] == pytest.approx(0.0165)
    assert costs.draft[1] == pytest.approx(0.0001)
    assert costs.measured


@pytest.mark.parametrize("seconds", [0.05, 0.4, 3.0])
def test_a_large_model_is_not_timed_for_longer_than_the_budget_and_one_pass(seconds: float) -> None:
    clock = VirtualClock()
    costs = calibrate(slow(clock, seconds), None, budget=2.0, clock=clock)
    assert clock.now <= 2.0 + seconds * 16.5 + seconds
    assert set(costs.target) == set(WIDTHS)  # the rest follows the usual shape
    assert costs.target[1] == pytest.approx(seconds)


def test_the_caches_are_empty_afterwards() -> None:
    clock = VirtualClock()
    target, draft = slow(clock, 0.001), slow(clock, 0.001)
    calibrate(target, draft, clock=clock)
    assert not target.tokens
    assert not draft.tokens


def test_a_context_narrower_than_a_width_is_not_overrun() -> None:
    clock = VirtualClock()
    cache = ScriptedCache(deterministic([1, 2], 4), 4, n_ctx=10, clock=clock, cost=lambda n: 0.001 * n)
    assert set(calibrate(cache, None, clock=clock).target) == set(WIDTHS)


@pytest.mark.usefixtures("specchat_home")
def test_what_was_saved_is_found_under_the_same_conditions_only() -> None:
    costs, learned = Costs({1: 0.5, 2: 0.75}, {1: 0.1}, measured=True), Learned(0.7, (0.1, 0.9))
    Measured.of("target", 4).save(costs, learned)
    again = Measured.of("target", 4)
    assert (again.costs, again.learned) == (costs, learned)
    assert Measured.of("target", 8).costs is None
    again.save(None, learned)
    assert (Measured.of("target", 4).costs, Measured.of("target", 4).learned) == (None, learned)


@pytest.mark.usefixtures("specchat_home")
@pytest.mark.parametrize("content", ["", "{", "[]", '{"costs": 3}', '{"costs": {"target": {"x": 1}, "draft": {}}}'])
def test_a_damaged_file_counts_as_none(content: str) -> None:
    path = Measured.of("pair").path
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert Measured.of("pair").costs is None


@pytest.mark.usefixtures("specchat_home")
def test_a_disk_that_takes_nothing_is_no_error() -> None:
    path = Measured.of("pair").path
    path.parent.parent.mkdir(parents=True, exist_ok=True)
    path.parent.write_text("a file where the folder should be")
    Measured.of("pair").save(Costs(), None)


def test_another_file_under_the_same_name_is_another_model(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"one")
    before = identity(file)
    file.write_bytes(b"three")
    assert identity(file) != before
