"""The default number of threads follows physical cores, affinity and the cgroup's quota."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from specchat.engine.threads import default_threads


def machine(root: Path, cores: dict[int, tuple[int, int]], files: dict[str, str] | None = None) -> Path:
    """A sys and proc: CPU number -> (package, core), and other files by path."""
    for cpu, (package, core) in cores.items():
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{package}\n")
        (topology / "core_id").write_text(f"{core}\n")
    for name, content in (files or {}).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


def allow(monkeypatch: pytest.MonkeyPatch, cpus: set[int]) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cpus, raising=False)


PLAIN = {cpu: (0, cpu) for cpu in range(8)}
V2 = {"proc/self/cgroup": "0::/a/b\n"}
V1 = {"proc/self/cgroup": "5:memory:/x\n4:cpu,cpuacct:/a\n"}


@pytest.mark.parametrize(
    ("cores", "allowed", "expected"),
    [
        (PLAIN, set(range(8)), 8),
        (PLAIN, {1, 5}, 2),
        ({cpu: (0, cpu // 2) for cpu in range(8)}, set(range(8)), 4),  # hyperthreads
        ({cpu: (cpu // 2, cpu % 2) for cpu in range(4)}, set(range(4)), 4),  # core numbers repeat between packages
        ({}, {0, 1, 2}, 3),  # nothing known about them
    ],
)
def test_physical_cores_that_may_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: dict[int, tuple[int, int]], allowed: set[int], expected: int
) -> None:
    allow(monkeypatch, allowed)

    assert default_threads(machine(tmp_path, cores)) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (V2 | {"sys/fs/cgroup/a/b/cpu.max": "300000 100000\n"}, 3),
        (V2 | {"sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, 8),
        (V2 | {"sys/fs/cgroup/a/b/cpu.max": "max 100000\n", "sys/fs/cgroup/a/cpu.max": "200000 100000\n"}, 2),
        (V2 | {"sys/fs/cgroup/cpu.max": "250000 100000\n"}, 2),  # a container sees the top only
        (V2 | {"sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        (V2 | {"sys/fs/cgroup/cpu.max": "nonsense\n"}, 8),
        (V2, 8),
        (
            V1
            | {
                "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "400000\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
            },
            4,
        ),
        (
            V1 | {"sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n"},
            8,
        ),
    ],
)
def test_the_tightest_quota_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: int
) -> None:
    allow(monkeypatch, set(range(8)))

    assert default_threads(machine(tmp_path, PLAIN, files)) == expected


def test_on_this_machine() -> None:
    assert 1 <= default_threads() <= (os.cpu_count() or 1)
