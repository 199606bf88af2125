"""The estimate against what llama.cpp itself says it allocates, for several architectures and context lengths."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from specchat.engine import header, llama
from specchat.engine.llama import N_OUTPUTS_MAX, Context, Model, ModelError
from specchat.memory import shapes
from specchat.memory.machine import Machine
from specchat.memory.planning import Part, Placement, Rung, Wish, parts
from specchat.memory.shapes import Shape
from specchat.units import GIB, MIB
from tests import ggufs
from tests.conftest import DemoPair

TINY = ("llama", "gemma3", "mamba", "lfm2")
# Lines such as "llama_kv_cache:        CPU KV buffer size =   180.00 MiB".
_BUFFER = re.compile(r"(\S+) +(model|output|KV|RS|compute) buffer size = +([\d.]+) MiB")


def shape_of(path: Path) -> Shape:
    found = header.read(path)
    return shapes.shape(path.name, found.metadata, found.lengths, found.tensors)


def estimate(path: Path, n_ctx: int, placement: Placement) -> dict[str, int]:
    """Bytes by kind of part."""
    rung = Rung("", placement)
    found: dict[str, int] = {}
    part: Part
    for part in parts(Wish(shape_of(path)), Machine(64 * GIB, 64 * GIB), rung, n_ctx):
        kind = "cache" if "cache" in part.what or part.what == "state" else part.what
        found[kind] = found.get(kind, 0) + part.bytes
    return found


def allocated(path: Path, n_ctx: int, placement: Placement, log: Path) -> dict[str, int]:
    """What llama.cpp writes that it took, after a pass with as many rows of logits as there can be."""
    llama.log_to(log)
    try:
        with Model.load(path, gpu_layers=0) as model:
            Context(
                model,
                n_ctx=n_ctx,
                threads=1,
                type_k=placement.type_k,
                type_v=placement.type_v,
                flash_attention=placement.flash_attention,
                snapshots=placement.snapshots,
            ).decode([1] * N_OUTPUTS_MAX, N_OUTPUTS_MAX)
    finally:
        llama.log_to(None)
    names = {"model": "weights", "KV": "cache", "RS": "cache", "compute": "compute buffer"}
    found: dict[str, int] = {}
    for where, kind, size in _BUFFER.findall(log.read_text()):
        # Repacked weights replace pages of the mapped file, which the kernel is free to drop.
        if kind in names and "REPACK" not in where:
            found[names[kind]] = found.get(names[kind], 0) + round(float(size) * MIB)
    return found


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, demo_pair: DemoPair) -> dict[str, Path]:
    """The real pair, and tiny models wide enough for their buffers to be seen."""
    folder = tmp_path_factory.mktemp("models")
    shape = ggufs.Shape(n_embd=256, n_head=8, n_ff=1024, n_layer=6, n_ctx_train=16384)
    files = {kind: ggufs.write(folder / f"{kind}.gguf", architecture=kind, shape=shape) for kind in TINY}
    return files | {"target": demo_pair.target, "draft": demo_pair.draft}


def close(estimated: int, real: int) -> bool:
    return abs(estimated - real) <= max(0.1 * real, 64 * MIB)


@pytest.mark.parametrize("flash_attention", [None, False])
@pytest.mark.parametrize("n_ctx", [512, 3000, 8192])
@pytest.mark.parametrize("name", ["target", "draft", *TINY])
def test_the_estimate_is_what_llama_cpp_takes(
    models: dict[str, Path], name: str, n_ctx: int, flash_attention: bool | None, tmp_path: Path
) -> None:
    placement = Placement(flash_attention=flash_attention)
    estimated, real = (
        estimate(models[name], n_ctx, placement),
        allocated(models[name], n_ctx, placement, tmp_path / "log"),
    )
    # To the byte, but for the log's rounding to 0.01 MiB and tensors' alignment.
    for exact in ("weights", "cache"):
        assert estimated[exact] == pytest.approx(real[exact], rel=0.01, abs=0.02 * MIB), exact
    assert close(estimated["compute buffer"], real["compute buffer"])
    # Never far below: that is what ends in a failed allocation.
    assert estimated["compute buffer"] > 0.6 * real["compute buffer"]


def test_snapshots_of_a_hybrid_models_state_are_priced_as_taken(models: dict[str, Path], tmp_path: Path) -> None:
    placement = Placement(snapshots=4)
    estimated, real = (
        estimate(models["lfm2"], 512, placement),
        allocated(models["lfm2"], 512, placement, tmp_path / "log"),
    )
    assert estimated["cache"] == pytest.approx(real["cache"], rel=0.01, abs=0.02 * MIB)
    assert estimated["cache"] > estimate(models["lfm2"], 512, Placement())["cache"]
    assert close(estimated["compute buffer"], real["compute buffer"])


@pytest.mark.parametrize("flash_attention", [True, False])
@pytest.mark.parametrize("types", [("f16", "f16"), ("q8_0", "q8_0"), ("f16", "bf16"), ("q4_0", "q4_0")])
def test_cache_types_and_attention_are_priced_as_taken(
    models: dict[str, Path], types: tuple[str, str], flash_attention: bool, tmp_path: Path
) -> None:
    if types[1].startswith("q") and not flash_attention:
        types = (types[0], "f16")  # llama.cpp quantises V under flash attention only
    placement = Placement(type_k=types[0], type_v=types[1], flash_attention=flash_attention)
    estimated = estimate(models["target"], 4096, placement)
    real = allocated(models["target"], 4096, placement, tmp_path / "log")
    assert estimated["cache"] == pytest.approx(real["cache"], rel=0.01)
    assert estimated["compute buffer"] == pytest.approx(real["compute buffer"], rel=0.1)


def test_a_header_is_read_as_the_loaded_model_tells_it(models: dict[str, Path]) -> None:
    for path in models.values():
        shape = shape_of(path)
        with Model.load(path, vocab_only=False, gpu_layers=0) as model:
            assert (shape.n_vocab, shape.n_ctx_train, len(shape.layers)) == (
                model.n_vocab,
                model.n_ctx_train,
                model.n_layer,
            )
            assert shape.weights == model.size_bytes
            assert shape.is_recurrent == model.is_recurrent


def test_a_split_file_is_read_whole(tmp_path: Path) -> None:
    """Two parts with the same tensors' names would hide that one was left out: the second has its own."""
    import gguf

    for number, tensors in ((1, ("token_embd.weight", "blk.0.a.weight")), (2, ("blk.1.a.weight",))):
        writer = gguf.GGUFWriter(tmp_path / f"m-0000{number}-of-00002.gguf", "llama")
        writer.add_block_count(2)
        writer.add_uint16("split.count", 2)
        for name in tensors:
            writer.add_tensor(name, np.zeros((4, 32), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    shape = shape_of(tmp_path / "m-00001-of-00002.gguf")
    assert [layer.weights for layer in shape.layers] == [512, 512]
    assert shape.weights == 3 * 512


@pytest.mark.parametrize("kind", ["missing", "empty", "text", "cut"])
def test_a_bad_file_is_one_sentence(models: dict[str, Path], kind: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    if kind == "empty":
        path.touch()
    elif kind == "text":
        path.write_text("not a model")
    elif kind == "cut":
        ggufs.truncated(path, models["llama"], 900)
    with pytest.raises(ModelError, match=r"there is no file|is empty|is not a GGUF|incomplete or damaged"):
        header.read(path)
