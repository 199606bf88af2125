"""`specchat plan` as a program, and what somebody is told whose models do not fit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from specchat import probe
from specchat.commands import fitting, opening
from specchat.commands.options import Options
from specchat.engine import remote
from specchat.engine.llama import ModelError
from specchat.memory.machine import RAM, Machine, budget
from specchat.session import Launch, Session
from specchat.units import GIB, MIB, format_memory
from specchat.worker import ram
from specchat.worker.client import EngineError
from specchat.worker.protocol import LoadSettings
from specchat.worker.ram import Room
from tests import ggufs

COMMAND = [sys.executable, "-c", "from specchat.cli import main; main(prog_name='specchat')"]


def specchat(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    long = ggufs.Shape(n_ctx_train=65536, n_layer=4)
    return {
        "target": ggufs.write(folder / "target.gguf", shape=long),
        "draft": ggufs.write(folder / "draft.gguf"),
        "damaged": ggufs.truncated(folder / "damaged.gguf", folder / "draft.gguf", 900),
    }


def test_a_plan_names_parts_places_and_room(models: dict[str, Path]) -> None:
    done = specchat("plan", models["target"], "-md", models["draft"])
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert first == "both models in RAM; a context of 32,768 tokens"
    for said in ("target: target.gguf", "draft: draft.gguf", "KV cache (f16)", "MAY TAKE", "RAM"):
        assert said in done.stdout


def test_options_of_the_chat_shape_the_plan(models: dict[str, Path]) -> None:
    done = specchat("plan", models["target"], "-c", 4096, "-ctk", "q8_0", "--device", "CPU")
    assert "a context of 4,096 tokens" in done.stdout
    assert "KV cache (q8_0 and f16)" in done.stdout


@pytest.mark.parametrize(("layers", "said"), [(0, False), (99, True)])
def test_layers_for_a_gpu_that_is_not_there_are_not_passed_over_in_silence(
    models: dict[str, Path], layers: int, said: bool
) -> None:
    if not probe.build().gpus:
        done = specchat("plan", models["target"], "-ngl", layers)
        assert done.returncode == 0
        assert ("no layer is placed on a GPU" in done.stdout) is said


def test_a_step_down_has_its_reason(models: dict[str, Path]) -> None:
    done = specchat("plan", models["target"], "-md", models["draft"], "-c", 8192, "--memory-limit", "14MiB")
    assert done.returncode == 0
    assert "the target alone in RAM" in done.stdout
    assert "both models in RAM: " in done.stdout
    assert "too little memory" in done.stdout


def test_what_does_not_fit_is_a_table_a_sentence_and_status_1(models: dict[str, Path]) -> None:
    done = specchat("plan", models["target"], "--memory-limit", "1MiB")
    assert done.returncode == 1
    assert "MAY TAKE" in done.stdout
    assert "needs" in done.stderr
    assert "more memory; no pair of the catalogue would fit" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--memory-limit", "much"], 2, "is not a size such as 12 GiB"),
        (["--memory-limit", "0"], 2, "no memory at all"),
        (["-ctk", "q9"], 2, "is not one of"),
        (["--device", "CUDA7"], 1, "there is no device CUDA7 here; there is CPU"),
    ],
)
def test_bad_input_is_a_sentence(models: dict[str, Path], arguments: list[str], status: int, said: str) -> None:
    done = specchat("plan", models["target"], *arguments)
    assert (done.returncode, said in done.stderr) == (status, True), done.stderr
    assert "Traceback" not in done.stderr


def test_a_damaged_draft_leaves_a_plan_for_the_target(models: dict[str, Path]) -> None:
    done = specchat("plan", models["target"], "-md", models["damaged"])
    assert done.returncode == 0
    assert "without the draft model: " in done.stdout
    assert "incomplete or damaged" in done.stdout
    assert specchat("plan", models["damaged"]).returncode == 1


def test_a_pair_that_is_not_here_yet_is_priced_by_the_catalogue() -> None:
    done = specchat("plan", "qwen3-8b")
    assert done.returncode == 0
    assert "not here yet" in done.stdout
    assert "6.9 GiB" in done.stdout


# ---- what would fit


def test_a_pair_that_is_not_here_is_held_against_what_loading_would_take(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(6 * GIB, 8 * GIB)
    monkeypatch.setattr(ram, "available", lambda: room)
    may = budget(Machine(room.total, room.free))[RAM]
    assert may < room.free
    for limit, most in ((None, may), (round(5.9 * GIB), may), (GIB, GIB)):
        said = opening.before_pulling(Options(memory_limit=limit), "qwen3-8b")
        assert f"{format_memory(most)} of the {format_memory(room.free)} of free RAM may be used" in said


def test_a_limit_holds_for_a_pair_that_is_not_here_too(specchat_home: Path) -> None:
    assert "2.0 GiB of the" in specchat("plan", "qwen3-8b", "--memory-limit", "2G").stdout
    (specchat_home / "settings.toml").write_text('memory_limit = "3G"\n')
    assert "3.0 GiB of the" in specchat("plan", "qwen3-8b").stdout
    assert "2.0 GiB of the" in specchat("plan", "qwen3-8b", "--memory-limit", "2G").stdout


def test_the_largest_pair_that_fits_is_suggested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ram, "available", lambda: Room(6 * GIB, 8 * GIB))
    much = fitting.suggestion()
    assert "would fit: specchat pull " in much
    assert fitting.suggestion(limit=round(1.5 * GIB)) != much
    assert fitting.suggestion(limit=MIB) == "no pair of the catalogue would fit"


def test_a_load_that_does_not_fit_ends_with_the_advice(models: dict[str, Path]) -> None:
    launch = Launch("big", models["target"], settings=LoadSettings(memory_limit=MIB), advice=lambda: "take another")
    session = Session(launch)
    with pytest.raises(EngineError, match=r"needs .* more memory; take another"):
        list(session.load())
    session.close()
    damaged = Session(Launch("bad", models["damaged"], advice=lambda: "take another"))
    with pytest.raises(EngineError) as raised:
        list(damaged.load())
    assert "take another" not in str(raised.value)
    damaged.close()


# ---- other machines


@pytest.mark.skipif(remote.supported(), reason="this build of llama.cpp has the RPC engine: see tests/offload")
def test_a_build_without_the_rpc_engine_says_so_plainly(models: dict[str, Path]) -> None:
    for arguments in (["plan", models["target"], "--rpc", "localhost:50052"], ["rpc-worker"]):
        done = specchat(*arguments)
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert "cannot use other machines" in done.stderr
        assert "GGML_RPC=ON" in done.stderr


@pytest.mark.parametrize("endpoint", ["localhost", "localhost:", ":50052", "localhost:99999", "localhost:x"])
def test_an_endpoint_is_a_host_and_a_port(endpoint: str) -> None:
    with pytest.raises(ModelError, match="HOST:PORT"):
        remote.parse(endpoint)
    assert remote.parse("[::1]:50052") == ("[::1]", 50052)
