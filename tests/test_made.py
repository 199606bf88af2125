"""Model files made from another: the demo pair, remade when missing or damaged; failures leave nothing."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from specchat.errors import SpecchatError
from specchat.pairs import catalog, made, prepare
from specchat.pairs.library import Library, State, Step
from tests.conftest import DemoPair


def layers(path: Path) -> int:
    """The number of layers a GGUF file says it has: a key, its type (4: uint32) and its value, little-endian."""
    with path.open("rb") as file:
        head = file.read(8 << 20)  # vocabulary and all
    kind, count = struct.unpack_from("<II", head, head.index(b"llama.block_count") + len("llama.block_count"))
    assert kind == 4
    return int(count)


def quantize(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "specchat.engine.quantize", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def library(tmp_path: Path, demo_pair: DemoPair) -> Library:
    """A library of its own that holds the wheel's file, so that nothing is downloaded."""
    library = Library(tmp_path / "models", tmp_path / "verified")
    base = shipped().files["smollm2-135m-q4_1"]
    path = library.install_path(base.parts[0])
    path.parent.mkdir(parents=True)
    shutil.copy(demo_pair.base, path)
    assert base.sha256
    library.record(base.parts[0], base.sha256)
    return library


def shipped() -> catalog.Catalog:
    return catalog.load(user_file=Path("no such file"))


def steps(library: Library) -> list[Step]:
    return list(prepare.prepare(shipped(), library, shipped().pair("demo")))


def test_the_demo_pair_is_made_said_and_remade_when_missing_or_damaged(library: Library) -> None:
    target, draft = shipped().pair("demo").files
    texts = [step.text for step in steps(library)]
    assert "making the demo pair's target (Q8_0)" in texts
    assert "making the demo pair's draft (Q4_0)" in texts
    assert layers(library.path(target)) == 30
    assert layers(library.path(draft)) == 28
    assert steps(library) == []

    library.path(draft).unlink()
    assert {step.text.split("(")[0] for step in steps(library)} == {
        "making the demo pair's draft ",
        "checking the demo pair's draft",
    }

    library.path(target).write_bytes(b"GGUF")
    assert library.status(target).state is State.DAMAGED
    assert any("target" in step.text for step in steps(library))
    assert library.installed(shipped().pair("demo"))
    assert not list(library.models.rglob("*.tmp"))


def test_two_at_once_make_each_file_once(library: Library) -> None:
    done: list[list[Step]] = []
    threads = [threading.Thread(target=lambda: done.append(steps(library))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    made_by = ["making the demo pair's target (Q8_0)" in [s.text for s in some] for some in done]
    assert sorted(made_by) == [False, True]
    assert any(step.text.startswith(f"waiting for process {os.getpid()} on ") for some in done for step in some)


def test_abandoning_ends_the_quantiser_and_leaves_nothing(tmp_path: Path, demo_pair: DemoPair) -> None:
    work = made.make(demo_pair.base, tmp_path / "made" / "x.gguf", "Q8_0")
    while next(work).done == 0:
        pass
    alive = [p for p in psutil.Process().children() if p.status() != psutil.STATUS_ZOMBIE]
    child = [p for p in alive if "specchat.engine.quantize" in p.cmdline()]
    assert child
    work.close()
    assert not child[0].is_running()
    assert list((tmp_path / "made").iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "prune", "sentence"),
    [("Q9_9", (), "no quantisation called Q9_9"), ("Q4_0", (3, 30), "there is no layer 30 to prune")],
)
def test_a_wrong_order_is_a_sentence(
    tmp_path: Path, demo_pair: DemoPair, kind: str, prune: tuple[int, ...], sentence: str
) -> None:
    with pytest.raises(SpecchatError, match=sentence):
        list(made.make(demo_pair.base, tmp_path / "x.gguf", kind, prune))
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_is_no_model_is_a_sentence(tmp_path: Path, demo_pair: DemoPair) -> None:
    text = tmp_path / "text.gguf"
    text.write_text("not a model")
    short = tmp_path / "short.gguf"
    short.write_bytes(demo_pair.base.read_bytes()[:3_000_000])
    for source in (text, short, tmp_path / "none.gguf"):
        with pytest.raises(SpecchatError, match=f"could not make x.gguf from {source.name}: ") as caught:
            list(made.make(source, tmp_path / "out" / "x.gguf", "Q8_0"))
        assert "\n" not in str(caught.value)
        assert list((tmp_path / "out").iterdir()) == []


def test_a_full_disk_says_how_much_is_free(tmp_path: Path, demo_pair: DemoPair) -> None:
    order = f"{demo_pair.base} {tmp_path / 'x.gguf'} Q8_0"
    script = f"ulimit -f 20000; exec {sys.executable} -m specchat.engine.quantize {order}"
    result = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "writing failed" in result.stderr
    assert "MB free" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_quantiser_keeps_native_output_to_itself(tmp_path: Path, demo_pair: DemoPair) -> None:
    result = quantize(demo_pair.base, tmp_path / "x.gguf", "Q4_0", "--prune", "17,18")
    assert result.returncode == 0
    assert result.stderr == ""
    assert all(line.startswith("progress ") for line in result.stdout.splitlines())


def test_a_wrong_call_of_the_quantiser_exits_with_2(tmp_path: Path) -> None:
    assert quantize(tmp_path / "a", tmp_path / "b", "Q8_0", "--prune", "one").returncode == 2
    assert quantize().returncode == 2
