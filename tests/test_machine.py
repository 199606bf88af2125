"""What is left of memory, read from made-up control groups, and when the draft must go."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from specchat.memory.machine import Machine, ram_margin
from specchat.units import GIB, MIB
from specchat.worker import machine, ram
from specchat.worker.pressure import Pressure
from specchat.worker.ram import Room

TOTAL = psutil.virtual_memory().total
GROUP = "within the control group's limit"


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


@pytest.fixture
def v2(tmp_path: Path) -> Path:
    """A machine with control groups of version 2; this process is in /user/app."""
    write(tmp_path / "proc/self", cgroup="0::/user/app")
    group = tmp_path / "sys/fs/cgroup/user/app"
    write(group, memory__max="max", memory__high="max", memory__current=100 * MIB, memory__stat="anon 1")
    return tmp_path


def test_without_a_limit_the_machine_itself_counts(tmp_path: Path, v2: Path) -> None:
    for root in (tmp_path / "no such", v2):
        room = ram.available(root)
        assert room.total == TOTAL
        assert 0 < room.free < TOTAL
        assert room.bound == ""


def test_a_group_leaves_its_limit_less_what_cannot_be_reclaimed(v2: Path) -> None:
    write(
        v2 / "sys/fs/cgroup/user/app",
        memory__max=500 * MIB,
        memory__current=300 * MIB,
        memory__stat=f"anon {50 * MIB}\ninactive_file {150 * MIB}\nactive_file {50 * MIB}",
    )
    assert ram.available(v2) == Room(400 * MIB, 500 * MIB, GROUP)


def test_the_tightest_ancestor_counts_and_so_does_the_soft_limit(v2: Path) -> None:
    write(v2 / "sys/fs/cgroup/user/app", memory__max=500 * MIB)
    write(v2 / "sys/fs/cgroup/user", memory__max="max", memory__high=300 * MIB, memory__current=280 * MIB)
    assert ram.available(v2) == Room(20 * MIB, 300 * MIB, GROUP)


def test_a_group_over_its_limit_leaves_nothing(v2: Path) -> None:
    write(v2 / "sys/fs/cgroup/user/app", memory__max=50 * MIB)
    assert ram.available(v2).free == 0


def test_in_a_container_only_the_top_of_the_groups_is_visible(tmp_path: Path) -> None:
    write(tmp_path / "proc/self", cgroup="0::/../../somewhere/on/the/host")
    write(tmp_path / "sys/fs/cgroup", memory__max=GIB, memory__current=200 * MIB)
    write(tmp_path / "proc/self", cgroup="0::/docker/abc")
    assert ram.available(tmp_path) == Room(GIB - 200 * MIB, GIB, GROUP)


def test_version_1_is_read_too(tmp_path: Path) -> None:
    write(tmp_path / "proc/self", cgroup="4:cpu,cpuacct:/\n3:memory:/app\n0::/")
    group = tmp_path / "sys/fs/cgroup/memory/app"
    write(group, memory__limit_in_bytes=2**63 - 4096, memory__usage_in_bytes=GIB)
    assert ram.available(tmp_path).bound == ""
    write(group, memory__limit_in_bytes=400 * MIB, memory__usage_in_bytes=300 * MIB)
    write(group, memory__stat=f"total_inactive_file {100 * MIB}")
    assert ram.available(tmp_path) == Room(200 * MIB, 400 * MIB, GROUP)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such limit")
def test_a_limit_on_address_space_counts() -> None:
    code = (
        "import resource, psutil; from specchat.worker import ram\n"
        "size = psutil.Process().memory_info().vms + 300 * 2**20\n"
        "resource.setrlimit(resource.RLIMIT_AS, (size, size))\n"
        "room = ram.available(); print(room.free, room.bound)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    free, _, bound = said.partition(" ")
    assert 200 * MIB < int(free) <= 300 * MIB
    assert "ulimit" in bound


def test_other_engines_are_found_with_what_they_hold() -> None:
    code = "import sys; print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, "-m", "specchat.worker.process", "log"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as engine:
        assert engine.stdout is not None
        engine.stdout.readline()
        found = {other.pid: other.memory for other in machine.others()}
        assert found[engine.pid] > MIB
        assert engine.stdin is not None
        engine.stdin.close()
    assert engine.pid not in {other.pid for other in machine.others()}


# ---- pressure

HERE = Machine(20 * GIB, 10 * GIB)


@pytest.fixture
def pressure() -> Callable[[float, int], str]:
    """Asks at a time, with so much memory left."""
    now, left = 0.0, 0

    def ask(at: float, free: int) -> str:
        nonlocal now, left
        now, left = at, free
        return made()

    made = Pressure(HERE, lambda: Room(left, HERE.ram_total), lambda: now)
    return ask


def test_a_plan_that_just_fits_is_not_undone(pressure: Callable[[float, int], str]) -> None:
    assert pressure(0, ram_margin(HERE)) == ""
    assert pressure(10, ram_margin(HERE) // 2) == ""


def test_short_memory_is_said_with_what_is_left(pressure: Callable[[float, int], str]) -> None:
    said = pressure(0, 100 * MIB)
    assert "100 MiB" in said
    assert "/speculation draft" in said


def test_the_machine_is_looked_at_every_two_seconds_at_most(pressure: Callable[[float, int], str]) -> None:
    assert pressure(0, GIB) == ""
    assert pressure(1.9, 0) == ""
    assert pressure(2.1, 0) != ""
