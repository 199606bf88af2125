"""RAM that this process may still get: what the machine has, within control groups and the limit on address space.

Contract: reads a few files, and no native library: cheap enough to be asked every few seconds, by any process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

_V1_UNLIMITED: Final = 1 << 60  # version 1 writes "no limit" as the largest multiple of a page


@dataclass(frozen=True, slots=True)
class Room:
    """RAM that new allocations may get: what is left of a total, and what sets that total if not the machine."""

    free: int
    total: int
    bound: str = ""


def available(root: Path = Path("/")) -> Room:
    """The tightest of all that bounds this process."""
    whole = psutil.virtual_memory()
    rooms = [Room(whole.available, whole.total), *_groups(root), *_address_space()]
    return min(rooms, key=lambda room: room.free)


# ---- limits


def _address_space() -> Iterator[Room]:
    if sys.platform == "win32":
        return
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        left = max(0, limit - psutil.Process().memory_info().vms)
        # What was mapped before, mostly libraries, is no part of what a margin is a share of.
        yield Room(left, left, "within the limit on address space (ulimit -v)")


def _groups(root: Path) -> Iterator[Room]:
    """Each control group above this process that has a limit, in either version."""
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            hierarchy, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if hierarchy == "0":
                yield from _above(root / "sys/fs/cgroup", path, _group_v2)
            elif "memory" in controllers.split(","):
                yield from _above(root / "sys/fs/cgroup/memory", path, _group_v1)


def _above(base: Path, path: str, read_group: Callable[[Path], tuple[int, int] | None]) -> Iterator[Room]:
    group = base / path.lstrip("/")
    # In a container the path may be that of the host, of which only the top is visible: read what there is.
    for folder in (group, *group.parents):
        if not folder.is_relative_to(base):
            return
        with suppress(OSError, ValueError):
            found = read_group(folder)
            if found is not None:
                limit, used = found
                yield Room(max(0, limit - used), limit, "within the control group's limit")


def _group_v2(folder: Path) -> tuple[int, int] | None:
    """(limit, what is used of it); None where there is no limit."""
    limits = [text for name in ("memory.max", "memory.high") if (text := _text(folder / name)) not in ("", "max")]
    if not limits:
        return None
    used = int((folder / "memory.current").read_text())
    return min(map(int, limits)), used - _reclaimable(folder, "inactive_file", "active_file")


def _group_v1(folder: Path) -> tuple[int, int] | None:
    limit = int((folder / "memory.limit_in_bytes").read_text())
    if limit >= _V1_UNLIMITED:
        return None
    used = int((folder / "memory.usage_in_bytes").read_text())
    return limit, used - _reclaimable(folder, "total_inactive_file", "total_active_file")


def _reclaimable(folder: Path, *names: str) -> int:
    """Bytes of files that the kernel drops before it refuses memory: the weights' own pages are among them."""
    pairs = (line.split() for line in _text(folder / "memory.stat").splitlines())
    return sum(int(value) for name, value in pairs if name in names)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
