"""Distributions after every setting, as llama.cpp's own sampler chain gives them, and the rule of accept and reject."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import llama_cpp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from specchat.engine.sampling import (
    Distribution,
    Sampler,
    SamplingSettings,
    acceptance_of,
    accepts,
    confidence,
    distribution,
    residual,
    window,
)
from specchat.errors import SpecchatError

SETTINGS = [
    SamplingSettings(),
    SamplingSettings(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0),
    SamplingSettings(temperature=1.7, top_k=5, top_p=1.0, min_p=0.0),
    SamplingSettings(temperature=0.6, top_k=0, top_p=0.7, min_p=0.0),
    SamplingSettings(temperature=1.0, top_k=0, top_p=1.0, min_p=0.2),
    SamplingSettings(temperature=0.9, top_k=50, top_p=0.9, min_p=0.02),
    SamplingSettings(repeat_penalty=1.4, repeat_last_n=8),
    SamplingSettings(temperature=0.0),
    SamplingSettings(temperature=0.0, repeat_penalty=1.4, repeat_last_n=8),
]


def llama_cpp_distribution(
    logits: NDArray[np.float32], chosen: SamplingSettings, preceding: Sequence[int]
) -> NDArray[np.float64]:
    """What llama.cpp's default chain makes of the same logits, as probabilities over all ids."""
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    add = llama_cpp.llama_sampler_chain_add
    add(
        chain,
        llama_cpp.llama_sampler_init_penalties(logits.size, chosen.repeat_last_n, chosen.repeat_penalty, 0.0, 0.0),
    )
    add(chain, llama_cpp.llama_sampler_init_top_k(chosen.top_k))
    add(chain, llama_cpp.llama_sampler_init_top_p(chosen.top_p, 0))
    add(chain, llama_cpp.llama_sampler_init_min_p(chosen.min_p, 0))
    add(chain, llama_cpp.llama_sampler_init_temp(chosen.temperature))
    add(chain, llama_cpp.llama_sampler_init_dist(1))
    for token in preceding:
        llama_cpp.llama_sampler_accept(chain, token)
    data = (llama_cpp.llama_token_data * logits.size)()
    for i, logit in enumerate(logits):
        data[i].id, data[i].logit = i, float(logit)
    array = llama_cpp.llama_token_data_array(data=data, size=logits.size, selected=-1, sorted=False)
    llama_cpp.llama_sampler_apply(chain, ctypes.byref(array))
    probabilities = np.zeros(logits.size)
    for i in range(array.size):
        probabilities[array.data[i].id] = array.data[i].p
    llama_cpp.llama_sampler_free(chain)
    return probabilities


@pytest.mark.parametrize("chosen", SETTINGS, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_distributions_are_those_of_llama_cpps_own_chain(chosen: SamplingSettings, seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = (3.0 * rng.standard_normal(200)).astype(np.float32)
    preceding = [int(token) for token in rng.integers(0, 200, 30)]
    ours = distribution(logits, chosen, preceding).dense(200)
    assert ours == pytest.approx(llama_cpp_distribution(logits, chosen, preceding), abs=2e-6)


@pytest.mark.parametrize("spread", [0.001, 1.0, 30.0])
@pytest.mark.parametrize("k", [1, 40, 999])
def test_top_k_is_exact_however_flat_the_logits(spread: float, k: int) -> None:
    logits = (spread * np.random.default_rng(3).standard_normal(1000)).astype(np.float32)
    chosen = SamplingSettings(temperature=1.0, top_k=k, top_p=1.0, min_p=0.0)
    assert set(distribution(logits, chosen).ids) == set(np.argsort(-logits)[:k])


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("some", [slice(None), slice(7, 8)], ids=["all", "one"])
def test_logits_that_are_not_numbers_end_in_a_sentence(temperature: float, some: slice) -> None:
    logits = np.linspace(0.0, 1.0, 50, dtype=np.float32)
    logits[some] = np.nan
    with pytest.raises(SpecchatError, match="not a number"):
        distribution(logits, SamplingSettings(temperature))


def test_a_masked_token_is_never_drawn() -> None:
    logits = np.zeros(50, np.float32)
    logits[10:] = -np.inf
    for chosen in (SamplingSettings(), SamplingSettings(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)):
        assert distribution(logits, chosen).dense(50)[10:].sum() == 0.0


weights = st.lists(st.integers(0, 1000), min_size=4, max_size=4).filter(any)


def dist(values: Sequence[float]) -> Distribution:
    array = np.asarray(values, np.float64)
    ids = np.flatnonzero(array)
    return Distribution(ids, array[ids] / array.sum())


@given(weights, weights)
@settings(deadline=None)
def test_accept_then_residual_gives_back_p(p_weights: list[int], q_weights: list[int]) -> None:
    """The whole argument of algorithm 1, summed over every outcome instead of sampled."""
    p, q = dist(p_weights), dist(q_weights)
    accepted = np.minimum(p.dense(4), q.dense(4))
    out = accepted + (1.0 - accepted.sum()) * residual(p, q).dense(4)
    assert out == pytest.approx(p.dense(4), abs=1e-9)


def overlap(p: Distribution, q: Distribution) -> float:
    """Sum of min(p, q): the probability that a token drawn from q is accepted (Leviathan et al., theorem 3.5)."""
    size = int(max(p.ids.max(), q.ids.max())) + 1
    return float(np.minimum(p.probabilities, q.dense(size)[p.ids]).sum())


@given(weights, weights)
@settings(deadline=None)
def test_the_estimate_of_the_overlap_is_unbiased(p_weights: list[int], q_weights: list[int]) -> None:
    p, q = dist(p_weights), dist(q_weights)
    mean = sum(
        probability * acceptance_of(int(token), float(probability), q)
        for token, probability in zip(p.ids, p.probabilities, strict=True)
    )
    assert mean == pytest.approx(overlap(p, q), abs=1e-9)


def test_accepting_follows_the_ratio() -> None:
    p, q = dist([0.2, 0.8]), dist([0.8, 0.2])
    rng = np.random.default_rng(1)
    rate = sum(accepts(p, q, 0, rng) for _ in range(20_000)) / 20_000
    assert rate == pytest.approx(0.25, abs=0.015)
    assert all(accepts(p, q, 1, rng) for _ in range(1_000))


def test_the_residual_of_equal_distributions_falls_back_to_p() -> None:
    p = dist([0.6, 0.4])
    assert residual(p, p) is p


def test_drawing_never_leaves_the_support_and_follows_the_probabilities() -> None:
    d = Distribution(np.array([7, 3, 9]), np.array([0.5, 0.0, 0.5]))
    rng = np.random.default_rng(2)
    drawn = [d.draw(rng) for _ in range(10_000)]
    assert set(drawn) == {7, 9}
    assert drawn.count(7) / len(drawn) == pytest.approx(0.5, abs=0.02)


def test_a_seed_fixes_the_stream_and_none_does_not() -> None:
    def stream(seed: int | None) -> list[float]:
        return list(Sampler(SamplingSettings(seed=seed)).rng.random(4))

    assert stream(3) == stream(3)
    assert stream(None) != stream(None)


@pytest.mark.parametrize(("last_n", "end", "expected"), [(3, None, [7, 8, 9]), (3, 4, [2, 3, 4]), (0, None, [])])
def test_the_window_ends_before_the_position(last_n: int, end: int | None, expected: list[int]) -> None:
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert window(tokens, SamplingSettings(repeat_penalty=1.1, repeat_last_n=last_n), end) == expected


def test_without_penalties_nothing_of_the_past_is_looked_at() -> None:
    assert window([1, 2, 3], SamplingSettings(repeat_penalty=1.0)) == []


def test_confidence_is_the_softmax_at_temperature_zero() -> None:
    logits = np.log(np.array([0.7, 0.2, 0.1], np.float32))
    greedy = SamplingSettings(temperature=0.0)
    assert confidence(logits, distribution(logits, greedy), greedy) == pytest.approx(0.7, abs=1e-5)
