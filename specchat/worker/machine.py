"""What this machine has free now, read in the engine's process: RAM within its limits, GPUs, other engines.

Contract: reads, allocates nothing. `available` is cheap enough to be asked every few seconds. ggml's CPU device is
never asked: what it calls free is the machine's total.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from specchat.engine import llama
from specchat.memory.machine import Device, Machine, Other

_ENGINE: Final = "specchat.worker.process"
_V1_UNLIMITED: Final = 1 << 60  # version 1 writes "no limit" as the largest multiple of a page


def read() -> Machine:
    """Everything a plan wants to know."""
    free, bound = available()
    return Machine(psutil.virtual_memory().total, free, bound, tuple(devices()), tuple(others()))


def available(root: Path = Path("/")) -> tuple[int, str]:
    """(bytes of RAM that a new allocation may get, what bounds it if that is not the machine itself)."""
    bounds = [(psutil.virtual_memory().available, "")]
    bounds += [(left, "within the control group's limit") for left in _cgroup_left(root)]
    bounds += [(left, "within the limit on address space (ulimit -v)") for left in _address_space_left()]
    return min(bounds, key=lambda bound: bound[0])


def devices() -> Iterator[Device]:
    """The GPUs that this build of llama.cpp can use, other machines' among them."""
    unified = sys.platform == "darwin" and platform.machine() == "arm64"
    for device in llama.devices():
        if device.kind in ("gpu", "igpu"):
            remote = device.name.startswith("RPC")
            shared = not remote and (device.kind == "igpu" or unified)
            yield Device(device.name, device.description, device.free, device.total, shared, remote)


def others() -> Iterator[Other]:
    """Engines of other specchat processes, with what they hold in RAM."""
    for process in psutil.process_iter(["pid", "cmdline", "memory_info"]):
        info = process.info
        if info["pid"] != os.getpid() and _ENGINE in (info["cmdline"] or ()) and info["memory_info"]:
            yield Other(info["pid"], info["memory_info"].rss)


# ---- limits


def _address_space_left() -> Iterator[int]:
    if sys.platform == "win32":
        return
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        yield max(0, limit - psutil.Process().memory_info().vms)


def _cgroup_left(root: Path) -> Iterator[int]:
    """What each control group above this process, in either version, leaves."""
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            hierarchy, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if hierarchy == "0":
                yield from _left_above(root / "sys/fs/cgroup", path, _left_v2)
            elif "memory" in controllers.split(","):
                yield from _left_above(root / "sys/fs/cgroup/memory", path, _left_v1)


def _left_above(base: Path, path: str, left: Callable[[Path], int | None]) -> Iterator[int]:
    group = base / path.lstrip("/")
    # In a container the path may be that of the host, of which only the top is visible: read what there is.
    for folder in (group, *group.parents):
        if not folder.is_relative_to(base):
            return
        with suppress(OSError, ValueError):
            free = left(folder)
            if free is not None:
                yield max(0, free)


def _left_v2(folder: Path) -> int | None:
    limits = [text for name in ("memory.max", "memory.high") if (text := _text(folder / name)) not in ("", "max")]
    if not limits:
        return None
    used = int((folder / "memory.current").read_text())
    return min(map(int, limits)) - used + _reclaimable(folder, "inactive_file", "active_file")


def _left_v1(folder: Path) -> int | None:
    limit = int((folder / "memory.limit_in_bytes").read_text())
    if limit >= _V1_UNLIMITED:
        return None
    used = int((folder / "memory.usage_in_bytes").read_text())
    return limit - used + _reclaimable(folder, "total_inactive_file", "total_active_file")


def _reclaimable(folder: Path, *names: str) -> int:
    """Bytes of files that the kernel drops before it refuses memory: the weights' own pages are among them."""
    pairs = (line.split() for line in _text(folder / "memory.stat").splitlines())
    return sum(int(value) for name, value in pairs if name in names)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
