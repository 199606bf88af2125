"""A disk that really fills up: a small tmpfs, which only the system's administrator may mount."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from specchat.errors import SpecchatError
from tests.fakehub import FakeHub
from tests.pulling import Bench

ROOM = 256 * 1024


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting takes root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", tmp_path], check=True)
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def test_a_full_disk_keeps_the_part_and_says_both_numbers(small_disk: Path) -> None:
    with FakeHub() as hub:
        bench = Bench(hub, small_disk)
        solo = bench.pair("target.gguf")
        with pytest.raises(SpecchatError, match=r"400 kB are still to come and the disk of .* has 262 kB free"):
            bench.pull(solo)
        assert not hub.requests("GET")
        # Another program takes the room after it was checked.
        (small_disk / "other").write_bytes(bytes(ROOM // 2))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("specchat.pairs.pull.free_space", lambda _: 10**9)
            with pytest.raises(SpecchatError, match=r"the disk is full: .* of target.gguf are still to come.*free"):
                bench.pull(solo)
        here = bench.parts()[0].stat().st_size
        assert here > ROOM // 4
        (small_disk / "other").unlink()
        subprocess.run(["mount", "-o", f"remount,size={ROOM * 8}", small_disk], check=True)
        hub.log.clear()
        bench.pull(solo)
        bench.assert_whole("target.gguf")
        assert bench.starts("target.gguf") == [here]
