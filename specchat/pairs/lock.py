"""One process at a time on one file, and a name for who is at it.

Contract: the operating system holds the lock (flock, or a byte range on Windows), so a process that dies in
any way lets go of it and a lock file left behind blocks nobody. The file's text only says who holds it.
A file system that knows no locks (some network mounts) is used without.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final

if sys.platform == "win32":
    import msvcrt

    # Past any text: Windows locks are mandatory, and a waiter must still be able to read who holds it.
    _BYTE: Final = 1 << 30

    def _take(fd: int) -> None:
        os.lseek(fd, _BYTE, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        os.lseek(fd, 0, os.SEEK_SET)

else:
    import fcntl

    def _take(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


_HELD: Final = {errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK, errno.EDEADLK}
_UNKNOWN: Final = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP}


class Held:
    """A lock that this process has, until the end of a `with` block."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path, self._fd = path, fd

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        # Removed while still held, so that whoever opens the path next makes a fresh one (see _try).
        with contextlib.suppress(OSError):
            self._path.unlink()
        os.close(self._fd)


def attempt(path: Path) -> Held | None:
    """Take the lock at `path`, in a folder that exists; None while another has it.

    Two holders in one process exclude each other as well.
    """
    fd = _try(path)
    return None if fd is None else Held(path, fd)


@contextlib.contextmanager
def held(path: Path, waiting: Callable[[str], None], poll: float = 0.2) -> Iterator[None]:
    """Hold the lock at `path`; call `waiting(who)` every `poll` seconds while another has it.

    `waiting` may raise to give up.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while (taken := attempt(path)) is None:
        waiting(owner(path))
        time.sleep(poll)
    with taken:
        yield


def _try(path: Path) -> int | None:
    """The locked descriptor, or None while another holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _take(fd)
    except OSError as error:
        if error.errno not in _UNKNOWN:
            os.close(fd)
            if error.errno in _HELD:
                return None
            raise
    # The holder before us may have removed the file between our open and our lock: then it is not the lock.
    try:
        current = os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        current = False
    if not current:
        os.close(fd)
        return _try(path)
    os.ftruncate(fd, 0)
    os.write(fd, f"process {os.getpid()} on {socket.gethostname()}".encode())
    return fd


def owner(path: Path) -> str:
    """Who has the lock at `path`, in words."""
    try:
        return path.read_text("utf-8", errors="replace").strip() or "another specchat"
    except OSError:
        return "another specchat"
