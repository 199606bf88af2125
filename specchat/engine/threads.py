"""How many threads to decode with: physical cores this process may use, within its cgroup's quota.

llama.cpp's threads wait for each other at every operation of the graph, spinning: one more thread than there are
cores, or a second one on the same core, makes every token slower.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import psutil


def default_threads(root: Path = Path("/")) -> int:
    """At least 1. `root` is where proc and sys are mounted."""
    cores = _physical_cores(root / "sys/devices/system/cpu")
    quota = _cgroup_quota(root)
    return max(1, cores if quota is None else min(cores, int(quota)))


def _physical_cores(cpus: Path) -> int:
    """Cores behind the CPUs in this process's affinity mask: two hyperthreads share one (package, core) number."""
    if not hasattr(os, "sched_getaffinity"):
        return psutil.cpu_count(logical=False) or os.cpu_count() or 1
    allowed = os.sched_getaffinity(0)
    cores = {_core(cpus / f"cpu{number}/topology") or number for number in allowed}
    return len(cores)


def _core(topology: Path) -> tuple[str, str] | None:
    try:
        return (topology / "physical_package_id").read_text(), (topology / "core_id").read_text()
    except OSError:
        return None


def _cgroup_quota(root: Path) -> float | None:
    """CPUs' worth of time the tightest cgroup above this process allows; None where there is no limit."""
    try:
        memberships = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    quotas = [quota for line in memberships for quota in _quotas(root / "sys/fs/cgroup", line)]
    return min(quotas, default=None)


def _quotas(mount: Path, membership: str) -> Iterable[float]:
    """The limits of one line of /proc/self/cgroup (`0::/a/b` in version 2, `4:cpu,cpuacct:/a/b` in version 1)."""
    hierarchy, _, rest = membership.partition(":")
    controllers, _, path = rest.partition(":")
    if hierarchy != "0" and "cpu" not in controllers.split(","):
        return
    base = mount if hierarchy == "0" else mount / "cpu"
    group = base / path.lstrip("/")
    # In a container the path may be that of the host, of which only the top is visible: read what there is.
    for folder in (group, *group.parents):
        if not folder.is_relative_to(base):
            break
        if (quota := _quota(folder)) is not None:
            yield quota


def _quota(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").exists():
            limit, period = (folder / "cpu.max").read_text().split()
        else:
            limit = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        return None if limit in ("max", "-1") else int(limit) / int(period)
    except (OSError, ValueError):
        return None
