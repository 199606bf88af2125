"""Plans over machines of every size: what fits is planned, in the stated order, and everything else is explained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specchat.memory import planning, shapes, table
from specchat.memory.machine import RAM, Device, Machine, Other, budget, margin, missing, ram_margin
from specchat.memory.planning import ALL_LAYERS, Placement, Plan, Rung, Wish, plan
from specchat.memory.shapes import Layer, Pass, Shape
from specchat.units import GIB, MIB, format_lack, parse_size


def model(name: str, n_layer: int, layer_mib: int, n_ctx_train: int = 131072, tied: bool = False) -> Shape:
    """A transformer with 64 KiB of f16 cache a token for 16 layers."""
    layers = (Layer(layer_mib * MIB, keys=1024, values=1024),) * n_layer
    output = 0 if tied else 200 * MIB
    return Shape(name, 32_000, 2048, 8192, 16, n_ctx_train, layers, 200 * MIB, output, tied)


TARGET = model("target.gguf", 32, 200)  # 6.6 GiB; 128 KiB a token: 1 GiB at 8k, 4 GiB at 32k
DRAFT = model("draft.gguf", 8, 50, tied=True)
PAIR = Wish(TARGET, DRAFT)


def machine(ram_gib: float, *gpus_gib: float, **more: Any) -> Machine:
    ram = round(ram_gib * GIB)
    gpus = tuple(Device(f"GPU{i}", "a card", round(size * GIB), round(size * GIB)) for i, size in enumerate(gpus_gib))
    return replace(Machine(ram, ram, devices=gpus), **more)


def fits(found: Plan) -> bool:
    return not missing(found.use, found.machine, found.wish.limit)


# ---- without a GPU


def test_without_a_gpu_both_models_are_in_ram_or_the_target_alone() -> None:
    both, alone = plan(PAIR, machine(24)), plan(PAIR, machine(8.8))
    assert list(dict.fromkeys(rung.name for rung in both.rungs)) == ["both models in RAM", "the target alone in RAM"]
    assert both.reasons == ()
    assert both.draft_obstacle == ""
    assert {rung.draft for rung in alone.rungs} == {None}
    assert alone.n_ctx >= 8192
    assert "too little memory" in alone.draft_obstacle
    assert set(both.use) == {RAM}


@given(ram=st.floats(8.0, 40.0), n_ctx=st.none() | st.integers(1024, 100_000))
def test_in_ram_flash_attention_is_for_want_of_memory_only(ram: float, n_ctx: int | None) -> None:
    """It is slow there, for both models, but costs neither the draft nor any of the context that was asked for."""
    found = plan(replace(PAIR, n_ctx=n_ctx), machine(ram))
    for rung in found.rungs[:-1]:
        placements = [placement for placement in (rung.target, rung.draft) if placement]
        quick = [replace(placement, flash_attention=False) for placement in placements]
        needed = planning.use(planning.parts(found.wish, found.machine, Rung("", *quick), found.n_ctx))
        expected = None if missing(needed, found.machine) else False
        assert {placement.flash_attention for placement in placements} == {expected}


@given(ram=st.floats(8.0, 40.0), n_ctx=st.none() | st.integers(1024, 100_000), exact=st.booleans())
def test_in_ram_each_step_down_takes_less_and_the_last_takes_least(ram: float, n_ctx: int | None, exact: bool) -> None:
    """The plan may be wrong about what fits: then the target stays alive wherever it can."""
    found = plan(replace(PAIR, n_ctx=n_ctx, exact=exact), machine(ram))
    if not found.rungs:
        return
    needed = [
        sum(planning.use(planning.parts(found.wish, found.machine, r, found.n_ctx)).values()) for r in found.rungs
    ]
    assert needed == sorted(set(needed), reverse=True)
    least = found.rungs[-1]
    assert (least.draft, least.target.flash_attention) == (None, True if exact else None)


@given(ram=st.floats(5.0, 40.0))
def test_auto_goes_without_speed_before_it_goes_without_its_first_8192_tokens(ram: float) -> None:
    here = machine(ram)
    assert plan(PAIR, here).n_ctx >= plan(replace(PAIR, n_ctx=8192), here).n_ctx


@given(st.integers(1, 64 * GIB))
def test_what_is_said_to_be_missing_is_enough(lack: int) -> None:
    said = format_lack(lack)
    assert lack <= parse_size(said) <= lack + max(MIB, lack // 8)
    assert not said.startswith("0 ")


def test_elsewhere_attention_is_as_it_must_be_or_as_llama_cpp_has_it() -> None:
    quantised, exact = replace(PAIR, type_v="q8_0"), replace(PAIR, exact=True)
    assert plan(PAIR, machine(24, 24)).rungs[0].target.flash_attention is None
    assert plan(quantised, machine(24)).rungs[0].target.flash_attention is True  # llama.cpp wants it for such a V
    assert plan(exact, machine(24)).rungs[0].target.flash_attention is True


def test_a_target_without_a_draft_has_no_obstacle() -> None:
    found = plan(Wish(TARGET), machine(24))
    assert ({rung.draft for rung in found.rungs}, found.draft_obstacle) == ({None}, "")


# ---- the context's length


def test_auto_grows_to_32k_while_it_fits_and_no_further() -> None:
    assert plan(PAIR, machine(64)).n_ctx == 32768
    some = plan(PAIR, machine(12))
    assert 8192 < some.n_ctx < 32768
    assert some.rungs[0].draft is not None
    assert some.rungs[0].target.flash_attention is False
    assert plan(replace(PAIR, n_ctx=some.n_ctx + 1024), machine(12)).rungs[0].target.flash_attention is None
    assert plan(replace(PAIR, n_ctx=32768), machine(12)).rungs[0].draft is None


def test_auto_stays_within_what_the_model_was_trained_for() -> None:
    short = replace(PAIR, target=model("short.gguf", 32, 200, n_ctx_train=2048))
    assert plan(short, machine(64)).n_ctx == 2048


def test_the_draft_gets_its_place_before_the_context_grows() -> None:
    """With room for the target at 32k or for both at 8k it is both."""
    found = plan(PAIR, machine(10.5))
    assert found.rungs[0].draft is not None
    assert plan(Wish(TARGET), machine(10.5)).n_ctx > found.n_ctx >= 8192


def test_a_context_that_was_asked_for_stays_as_asked_even_if_it_costs_the_draft() -> None:
    asked = replace(PAIR, n_ctx=16000)
    found = plan(asked, machine(9.6))
    assert found.n_ctx == 16000
    assert found.rungs[0].draft is None
    assert plan(asked, machine(64)).n_ctx == 16000


def test_a_context_that_does_not_fit_is_shortened_and_that_is_said() -> None:
    found = plan(replace(PAIR, n_ctx=100_000), machine(10))
    assert 16384 < found.n_ctx < 32768
    assert f"a context of 100,000 tokens does not fit even without a draft: it is {found.n_ctx:,}" in found.reasons
    assert not plan(replace(PAIR, n_ctx=found.n_ctx + 2048), machine(10)).n_ctx > found.n_ctx + 1024


def test_a_context_far_beyond_the_models_own_is_not_what_memory_is_spent_on() -> None:
    """Nobody means to fill the machine with a cache of a million tokens that the model cannot use."""
    own = replace(PAIR, target=model("own.gguf", 32, 200, n_ctx_train=8192))
    assert plan(replace(own, n_ctx=100_000_000), machine(64)).n_ctx == 8192
    assert plan(replace(own, n_ctx=16384), machine(64)).n_ctx == 16384  # it fits: as asked


def test_auto_goes_below_8k_rather_than_give_up() -> None:
    found = plan(PAIR, machine(7.9))
    assert 4096 < found.n_ctx < 8192
    assert found.rungs


def test_what_does_not_fit_at_all_says_how_much_is_missing() -> None:
    found = plan(PAIR, machine(6))
    assert found.rungs == ()
    assert found.short_on == RAM
    enough = machine(6, ram_available=6 * GIB + found.missing)
    assert plan(PAIR, enough).rungs
    assert not plan(PAIR, replace(enough, ram_available=enough.ram_available - MIB)).rungs
    assert "more memory" in found.reasons[0]
    assert "does not fit" in table.headline(found)


# ---- GPUs

# On GPUs from roomy to hopeless: how the best rung places the target's layers and the draft.
LADDER = (
    (12.0, (ALL_LAYERS, ("GPU0",), "f16")),
    (8.68, (ALL_LAYERS, ("GPU0",), "q8_0")),
    (8.6, (ALL_LAYERS, (), "f16")),
)


@pytest.mark.parametrize(("gpu_gib", "expected"), LADDER)
def test_rungs_beside_a_gpu(gpu_gib: float, expected: tuple[int, tuple[str, ...], str]) -> None:
    best = plan(PAIR, machine(32, gpu_gib)).rungs[0]
    assert best.draft is not None
    assert (best.target.gpu_layers, best.draft.devices, best.draft.type_k) == expected
    assert best.target.type_k == best.target.type_v == "f16"


def test_plain_with_the_target_whole_on_the_gpu_comes_before_the_target_partly_there() -> None:
    little_ram = machine(1.2, 8.6)
    found = plan(PAIR, little_ram)
    assert found.rungs[0].draft is None
    assert found.rungs[0].target.gpu_layers == ALL_LAYERS
    assert len(found.reasons) == 3


def test_a_target_too_large_for_the_gpu_is_partly_there_with_as_much_as_fits() -> None:
    here = machine(32, 4)
    found = plan(PAIR, here)
    best = found.rungs[0]
    assert 0 < best.target.gpu_layers < 33
    assert best.draft is not None
    more = replace(best, target=replace(best.target, gpu_layers=best.target.gpu_layers + 1))
    assert missing(planning.use(planning.parts(PAIR, here, more, 8192)), here)
    assert found.rungs[-1].name == "the target alone in RAM"


def test_layers_that_were_asked_for_are_kept() -> None:
    found = plan(replace(PAIR, gpu_layers=10), machine(32, 24))
    assert {rung.target.gpu_layers for rung in found.rungs} == {10}
    assert plan(replace(PAIR, gpu_layers=0), machine(32, 24)).use.keys() == {RAM}
    assert plan(replace(PAIR, gpu_layers=99), machine(32, 24)).rungs[0].target.gpu_layers == ALL_LAYERS


def test_two_gpus_share_the_target_by_what_they_have_free() -> None:
    here = machine(32, 12, 6)
    found = plan(PAIR, here)
    homes = planning.homes_of(TARGET, found.rungs[0].target, here)
    assert homes == sorted(homes)
    assert homes.count("GPU0") == pytest.approx(2 * homes.count("GPU1"), abs=1)
    assert found.rungs[0].draft is not None
    assert found.rungs[0].draft.devices == ("GPU0",)


def test_only_the_devices_that_were_named_are_used() -> None:
    found = plan(replace(PAIR, devices=("GPU1",)), machine(32, 12, 12))
    assert set(found.use) == {RAM, "GPU1"}


def test_a_draft_stays_off_other_machines() -> None:
    remote = Device("RPC0", "another machine", 16 * GIB, 16 * GIB, is_remote=True)
    only_remote = plan(PAIR, machine(32, devices=(remote,))).rungs[0]
    assert only_remote.target.devices == ("RPC0",)
    assert only_remote.draft == Placement()
    both = machine(32, 24)
    spread = plan(PAIR, replace(both, devices=(*both.devices, remote))).rungs[0]
    assert spread.draft is not None
    assert spread.draft.devices == ("GPU0",)


def test_shared_memory_is_counted_once() -> None:
    """16 GiB that processor and GPU share hold what 16 GiB hold, not 28."""
    metal = Device("Metal", "Apple", 12 * GIB, 12 * GIB, shares_ram=True)
    big = replace(PAIR, n_ctx=65536)
    assert plan(big, machine(16, devices=(replace(metal, shares_ram=False),))).rungs[0].draft is not None
    shared = plan(big, machine(16, devices=(metal,)))
    assert sum(shared.use.values()) <= budget(shared.machine)[RAM]


def test_a_tied_output_is_held_twice_where_it_is_offloaded() -> None:
    tied = Wish(model("tied.gguf", 4, 10, tied=True), n_ctx=1024)
    weights = {
        where: sum(p.bytes for p in plan(tied, machine(8, *gpus)).parts if p.what == "weights")
        for where, gpus in (("ram", ()), ("gpu", (8,)))
    }
    assert weights["gpu"] - weights["ram"] == tied.target.input_bytes


# ---- limits and modes


def test_a_limit_lowers_what_may_be_taken_of_each_device() -> None:
    assert budget(machine(32, 8), 2 * GIB) == {RAM: 2 * GIB, "GPU0": 2 * GIB}
    assert budget(machine(32, 8), 100 * GIB) == budget(machine(32, 8))
    assert plan(replace(PAIR, limit=8 * GIB), machine(64)).rungs[0].draft is None
    assert not plan(replace(PAIR, limit=GIB), machine(64)).rungs


@given(st.integers(0, 2000 * 2**30))
def test_margins_are_kept_and_in_proportion(total: int) -> None:
    device = Device("GPU0", "", total, total)
    assert 64 * MIB <= margin(device) <= GIB
    assert 256 * MIB <= ram_margin(Machine(total, total)) <= 2 * GIB


def test_exact_replies_have_their_own_cache_and_the_users_types_are_kept() -> None:
    exact = plan(replace(PAIR, exact=True), machine(64)).rungs[0].target
    assert (exact.type_k, exact.type_v, exact.flash_attention) == ("f16", "bf16", True)
    small = plan(replace(PAIR, type_k="q8_0", type_v="q8_0"), machine(64)).rungs[0].target
    assert (small.type_k, small.type_v, small.flash_attention) == ("q8_0", "q8_0", True)


@given(
    st.floats(1, 64),
    st.lists(st.floats(0.5, 48), max_size=3),
    st.one_of(st.none(), st.integers(256, 100_000)),
    st.one_of(st.none(), st.integers(0, 40)),
    st.booleans(),
)
def test_every_plan_fits_and_is_explained(
    ram: float, gpus: list[float], n_ctx: int | None, gpu_layers: int | None, shared: bool
) -> None:
    here = machine(ram, *gpus)
    here = replace(here, devices=tuple(replace(device, shares_ram=shared) for device in here.devices))
    found = plan(replace(PAIR, n_ctx=n_ctx, gpu_layers=gpu_layers), here)
    printed = "\n".join(table.lines(found))
    if not found.rungs:
        assert found.missing > 0
        assert "more memory" in printed
        return
    for rung in found.rungs:
        assert not missing(planning.use(planning.parts(found.wish, here, rung, found.n_ctx)), here)
    assert fits(found)
    if found.rungs[0].draft is None:
        assert "too little memory" in found.draft_obstacle
    assert found.n_ctx == n_ctx or n_ctx is None or f"{n_ctx:,} tokens does not fit" in printed


# ---- the parts


def test_a_sliding_window_costs_the_whole_cache_and_a_second_mask() -> None:
    run = Pass(256, 33)
    windowed = replace(TARGET, windowed=True)
    more = shapes.compute_bytes(windowed, 8192, run) - shapes.compute_bytes(TARGET, 8192, run)
    assert more == shapes.mask_bytes(TARGET, 8192, run) == 256 * 8192 * 2
    assert sum(p.bytes for p in plan(Wish(windowed, n_ctx=8192), machine(64)).parts if "cache" in p.what) == GIB


def test_cells_are_padded_as_llama_cpp_pads_them() -> None:
    assert [shapes.cells(n) for n in (1, 256, 257, 8000)] == [256, 256, 512, 8192]


def header(architecture: str, **fields: object) -> Shape:
    metadata = {"general.architecture": architecture} | {
        f"{architecture}.{key.replace('__', '.')}": value for key, value in fields.items()
    }
    tensors = {f"blk.{i}.w": 1000 for i in range(8)} | {"token_embd.weight": 500, "output.weight": 600}
    return shapes.shape("m", metadata, {"tokenizer.ggml.tokens": 100}, tensors)


def test_key_and_value_lengths_come_from_the_header_not_from_the_width() -> None:
    usual = header("llama", block_count=8, embedding_length=64, attention__head_count=8, attention__head_count_kv=2)
    assert {(layer.keys, layer.values) for layer in usual.layers} == {(16, 16)}
    own = header(
        "qwen3",
        block_count=8,
        embedding_length=64,
        attention__head_count=8,
        attention__head_count_kv=2,
        attention__key_length=128,
        attention__value_length=96,
    )
    assert {(layer.keys, layer.values) for layer in own.layers} == {(256, 192)}
    assert (own.input_bytes, own.output_bytes, own.is_tied) == (500, 600, False)


def test_heads_may_differ_by_layer_and_late_layers_may_share_a_cache() -> None:
    varied = header(
        "openelm",
        block_count=4,
        embedding_length=64,
        attention__head_count=(8, 8, 8, 8),
        attention__head_count_kv=(1, 2, 4, 8),
    )
    assert [layer.keys for layer in varied.layers] == [8, 16, 32, 64]
    shared = header(
        "gemma4",
        block_count=4,
        embedding_length=64,
        attention__head_count=8,
        attention__shared_kv_layers=2,
    )
    assert [layer.keys for layer in shared.layers] == [64, 64, 0, 0]


def test_layers_for_predicting_several_tokens_are_not_loaded() -> None:
    some = header("glm4moe", block_count=8, nextn_predict_layers=2, embedding_length=64, attention__head_count=8)
    assert len(some.layers) == 6
    assert some.weights == 6 * 1000 + 1100


def test_latent_attention_caches_one_row() -> None:
    latent = header(
        "deepseek2",
        block_count=2,
        embedding_length=64,
        attention__head_count=8,
        attention__head_count_kv=1,
        attention__key_length=576,
        attention__value_length=512,
        attention__key_length_mla=192,
    )
    assert {(layer.keys, layer.values) for layer in latent.layers} == {(576, 0)}


# ---- in print


def test_the_table_names_every_part_device_and_neighbour() -> None:
    here = machine(32, 8.68, ram_bound="within the control group's limit", others=(Other(77, 3 * GIB),))
    printed = "\n".join(table.lines(plan(PAIR, here)))
    for said in (
        "target: target.gguf",
        "draft: draft.gguf",
        "KV cache (q8_0)",
        "GPU0",
        "control group",
        "process 77",
        "3.0 GiB",
        "both models on GPU0: ",
    ):
        assert said in printed
