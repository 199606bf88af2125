"""The sha256 of a file that is still growing.

Contract: `Verifier` hashes what is on disk, from the first byte, in a thread that follows the writer. A
resumed download is thereby checked as a whole, the last byte's arrival is soon followed by the verdict, and
memory stays at one buffer however large the file is.
"""

from __future__ import annotations

import hashlib
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

_BUFFER: Final = 1024**2


class Verifier(threading.Thread):
    """Follows the file at `path`. `turn` is held while hashing: one shared lock keeps it all on one core."""

    def __init__(self, path: Path, turn: AbstractContextManager[object]) -> None:
        super().__init__(name=f"sha256 of {path.name}", daemon=True)
        self.hashed = 0
        self._path = path
        self._turn = turn
        self._digest = hashlib.sha256()
        self._available = 0
        self._total: int | None = None
        self._closed = False
        self._error: OSError | None = None
        self._grown = threading.Condition()

    def extend(self, available: int) -> None:
        """The first `available` bytes of the file are written."""
        # Waking the thread for every chunk of a socket would cost more than hashing it.
        if available - self._available >= _BUFFER:
            with self._grown:
                self._available = available
                self._grown.notify()

    def close(self) -> None:
        """Give up; the thread ends by itself."""
        with self._grown:
            self._closed = True
            self._grown.notify()

    def finish(self, total: int, patience: float) -> str | None:
        """The hash of the file's `total` bytes, or None when it takes longer than `patience` seconds still.

        Raises OSError when the file could not be read.
        """
        with self._grown:
            self._total = self._available = total
            self._grown.notify()
        self.join(patience)
        if self._error is not None:
            raise self._error
        return None if self.is_alive() else self._digest.hexdigest()

    def run(self) -> None:
        """Hash what is there, wait for more, until the total is reached."""
        buffer = memoryview(bytearray(_BUFFER))
        try:
            with self._path.open("rb", buffering=0) as stream:
                while (room := self._room()) > 0:
                    count = stream.readinto(buffer[: min(room, _BUFFER)])
                    if not count:
                        raise OSError(f"{self._path.name} became shorter while it was read")
                    with self._turn:
                        self._digest.update(buffer[:count])
                    self.hashed += count
        except OSError as error:
            self._error = error

    def _room(self) -> int:
        """Bytes that can be hashed, waiting for some; 0 at the end."""
        with self._grown:
            while not self._closed and self.hashed >= self._available and self.hashed != self._total:
                self._grown.wait()
            return 0 if self._closed else self._available - self.hashed
