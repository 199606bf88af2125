"""Processes that are killed, disks that fill up, two programs at once: the next run goes on, nothing is lost."""

from __future__ import annotations

import contextlib
import hashlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specchat.pairs import lock
from specchat.pairs.catalog import Pair
from specchat.pairs.library import State
from specchat.pairs.progress import Phase
from specchat.pairs.verifier import Verifier
from tests.fakehub import FakeHub, model
from tests.pulling import SIZE, Bench


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as hub:
        yield hub


@pytest.fixture
def bench(hub: FakeHub, tmp_path: Path) -> Bench:
    return Bench(hub, tmp_path)


@pytest.fixture
def solo(bench: Bench) -> Pair:
    return bench.pair("target.gguf")


@contextlib.contextmanager
def child(bench: Bench, death: str = "never") -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.pull_child", str(bench.folder), bench.hub.url, death]
    root = Path(__file__).parents[1]
    with subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE, encoding="utf-8") as process:
        try:
            yield process
        finally:
            process.kill()


def until(condition: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def killed(bench: Bench, death: str) -> None:
    with child(bench, death) as process:
        assert process.wait(20) == -signal.SIGKILL
    bench.hub.log.clear()


# -- killed -----------------------------------------------------------------------------------------------


def test_killed_while_downloading_goes_on_where_it_was(bench: Bench, solo: Pair) -> None:
    bench.hub.knobs.pace = SIZE / 10
    with child(bench) as process:
        until(lambda: bench.parts() and bench.parts()[0].stat().st_size >= 60_000)
        process.kill()
        process.wait()
    here = bench.parts()[0].stat().st_size
    assert bench.state("target.gguf") is State.PARTIAL
    bench.hub.log.clear()
    bench.hub.knobs.pace = None
    bench.pull(solo)
    bench.assert_whole("target.gguf")
    assert bench.starts("target.gguf") == [here]
    assert bench.sent("target.gguf") == SIZE - here


def test_killed_while_verifying_fetches_nothing_again(bench: Bench, solo: Pair) -> None:
    killed(bench, "verifying")
    assert bench.state("target.gguf") is State.PARTIAL
    bench.pull(solo)
    bench.assert_whole("target.gguf")
    assert not bench.hub.requests("GET")


def test_killed_before_the_rename_fetches_nothing_again(bench: Bench, solo: Pair) -> None:
    killed(bench, "before rename")
    assert not bench.installed("target.gguf").exists()
    bench.pull(solo)
    bench.assert_whole("target.gguf")
    assert not bench.hub.requests("GET")


def test_killed_after_the_rename_asks_nobody_and_hashes_again(bench: Bench, solo: Pair) -> None:
    killed(bench, "after rename")
    assert bench.state("target.gguf") is State.UNCHECKED
    bench.pull(solo)
    assert not bench.hub.log
    assert bench.progress(Phase.VERIFYING)
    assert bench.state("target.gguf") is State.READY


def test_a_part_torn_by_a_power_cut_is_noticed(bench: Bench, solo: Pair) -> None:
    torn = bytearray(bench.content("target.gguf")[:200_000])
    torn[190_000:] = bytes(10_000)  # blocks that were promised and never written
    bench.leave_part("target.gguf", bytes(torn))
    bench.pull(solo)
    bench.assert_whole("target.gguf")


# -- full disks -------------------------------------------------------------------------------------------


def test_a_limit_on_file_sizes_keeps_the_part_and_says_both_numbers(bench: Bench, solo: Pair) -> None:
    with child(bench, "150000") as process:
        _, said = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "takes no file of 400 kB (it stopped at 150 kB)" in said
    assert bench.parts()[0].stat().st_size == 150_000
    bench.hub.log.clear()
    bench.pull(solo)
    bench.assert_whole("target.gguf")
    assert bench.starts("target.gguf") == [150_000]


def test_a_folder_that_cannot_be_written_is_named(bench: Bench, solo: Pair) -> None:
    bench.library.models.parent.mkdir(parents=True, exist_ok=True)
    bench.library.models.write_text("in the way")
    with pytest.raises(Exception, match=r"models.*(Not a directory|File exists)"):
        bench.pull(solo)


# -- two at once ------------------------------------------------------------------------------------------


def test_a_second_pull_waits_and_says_for_whom(bench: Bench, solo: Pair) -> None:
    bench.hub.knobs.pace = SIZE / 2
    with child(bench) as process:
        until(lambda: bench.parts())
        bench.pull(solo)
        assert process.wait(20) == 0
    assert f"process {process.pid} on" in bench.notes()
    assert bench.sent("target.gguf") == SIZE
    bench.assert_whole("target.gguf")


def test_a_second_pull_takes_over_from_one_that_dies(bench: Bench, solo: Pair) -> None:
    bench.hub.knobs.pace = SIZE / 10
    with child(bench) as process:
        until(lambda: bench.parts() and bench.parts()[0].stat().st_size >= 60_000)
        for event in bench.start(solo):
            bench.events.append(event)
            if getattr(event, "phase", None) is Phase.WAITING and process.poll() is None:
                bench.hub.knobs.pace = None
                process.kill()
    assert bench.starts("target.gguf")[-1] >= 60_000
    bench.assert_whole("target.gguf")


def test_a_lock_left_behind_blocks_nobody(bench: Bench, solo: Pair) -> None:
    path = bench.installed("target.gguf")
    path.parent.mkdir(parents=True)
    path.with_name("target.gguf.lock").write_text("process 1 on this very machine")
    bench.pull(solo)
    assert not bench.progress(Phase.WAITING)
    bench.assert_whole("target.gguf")


def test_a_lock_is_held_by_one_thread_at_a_time(tmp_path: Path) -> None:
    inside, seen = [0], []

    def worker() -> None:
        for _ in range(50):
            with lock.held(tmp_path / "x.lock", lambda _: None, poll=0.001):
                inside[0] += 1
                seen.append(inside[0])
                time.sleep(0.0002)
                inside[0] -= 1

    threads = [threading.Thread(target=worker) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [1] * 200
    assert not list(tmp_path.iterdir())


# -- the hash that follows the file -----------------------------------------------------------------------


def test_the_hash_follows_a_growing_file(tmp_path: Path) -> None:
    content, path = model(3_000_000, 3), tmp_path / "growing"
    path.touch()
    verifier = Verifier(path, contextlib.nullcontext())
    verifier.start()
    with path.open("ab", buffering=0) as stream:
        for begin in range(0, len(content), 70_000):
            stream.write(content[begin : begin + 70_000])
            verifier.extend(min(begin + 70_000, len(content)))
    assert verifier.finish(len(content), 10) == hashlib.sha256(content).hexdigest()


def test_the_hash_of_a_file_that_shrinks_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_bytes(b"abc")
    verifier = Verifier(path, contextlib.nullcontext())
    verifier.start()
    with pytest.raises(OSError, match="became shorter"):
        verifier.finish(10, 10)


def test_a_closed_verifier_ends(tmp_path: Path) -> None:
    path = tmp_path / "open"
    path.touch()
    verifier = Verifier(path, contextlib.nullcontext())
    verifier.start()
    verifier.close()
    verifier.join(5)
    assert not verifier.is_alive()
