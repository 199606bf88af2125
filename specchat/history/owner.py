"""Which process writes a reply, and whether it still lives.

An owner is text: machine, process id, when that process started, and a number for each store in it. The start time
tells a process from a later one that was given the same id. Another machine's processes cannot be asked (containers
that share a folder count as other machines): there, a reply that has not grown for a minute is taken as abandoned.
"""

from __future__ import annotations

import itertools
import os
import platform
from typing import Final

import psutil

SILENCE: Final = 60.0  # seconds
# psutil derives start times from the wall clock on some systems: they move when the clock is corrected.
_START_TOLERANCE: Final = 3.0  # seconds
_numbers = itertools.count(1)
_open: Final[set[str]] = set()  # owners of this process whose store is open


def new_owner() -> str:
    """An owner for one store of this process, alive until `release`."""
    started = psutil.Process().create_time()
    owner = f"{os.getpid()}/{started:.2f}/{next(_numbers)}/{platform.node()}"
    _open.add(owner)
    return owner


def release(owner: str) -> None:
    """Its store is closed, whether or not that could be written down."""
    _open.discard(owner)


def is_alive(owner: str, silent_for: float) -> bool:
    """Whether the process behind `owner` may still write; its reply last grew `silent_for` seconds ago."""
    pid, started, _, machine = owner.split("/", 3)
    if machine != platform.node():
        return silent_for < SILENCE
    if int(pid) == os.getpid():
        return owner in _open
    try:
        process = psutil.Process(int(pid))
        return (
            process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - float(started)) < _START_TOLERANCE
        )
    except psutil.AccessDenied:
        return True
    except psutil.NoSuchProcess:
        return False
