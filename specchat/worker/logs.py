"""The log files of engine processes, in the logs' folder.

Contract: the latest few are kept, and as many of processes that crashed: the sentence about a crash names a file that
nothing but further crashes removes. A log whose process still runs stays. Nothing here raises: a full or read-only
disk must not keep anybody from chatting.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Final

from specchat import locations

if sys.platform == "win32":

    def hold(log: IO[bytes]) -> None:
        """Nothing to do: an open file cannot be deleted there."""
        del log

    def _is_held(log: Path) -> bool:
        del log
        return False

else:
    import fcntl

    def hold(log: IO[bytes]) -> None:
        """Keep an open log from being deleted until everybody who inherits it has closed it."""
        with suppress(OSError):  # a file system without locks
            fcntl.flock(log, fcntl.LOCK_SH)

    def _is_held(log: Path) -> bool:
        with log.open("rb") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            except OSError:
                return False
        return False


_KEPT: Final = 5  # of each kind
_RUNNING: Final = "engine-"
_CRASHED: Final = "crash-"


def new() -> Path:
    """An empty log for one process to come; the null device where there can be none."""
    folder = locations.logs_dir()
    log = folder / f"{_RUNNING}{datetime.now():%Y%m%d-%H%M%S-%f}-{os.getpid()}.log"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _prune(folder, _RUNNING, _KEPT - 1)
        log.touch()
    except OSError:
        return Path(os.devnull)
    return log


def keep(log: Path) -> Path:
    """The log of a process that crashed, under the name that it has from now on."""
    if not log.name.startswith(_RUNNING):
        return log
    kept = log.with_name(log.name.replace(_RUNNING, _CRASHED, 1))
    try:
        _prune(log.parent, _CRASHED, _KEPT - 1)
        log.rename(kept)
    except OSError:
        return log
    return kept


def _prune(folder: Path, kind: str, most: int) -> None:
    """Delete all but the latest `most` of one kind."""
    for log in sorted(folder.glob(f"{kind}*.log"))[:-most]:
        with suppress(OSError):
            if not _is_held(log):
                log.unlink()
