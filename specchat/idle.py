"""Something to be done once nothing has been going on for a while.

Contract: `then` runs in a thread of its own, never while anybody is inside `busy`, and whoever enters meanwhile waits
for its end. Nothing is done before `busy` was left for the first time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Idle:
    """A clock that starts when the last of those who are busy is done."""

    def __init__(self, seconds: float, then: Callable[[], None]) -> None:
        """`seconds` 0: never. They may be changed, and count from the next time on that somebody was busy."""
        self.seconds, self._then = seconds, then
        self._lock = threading.Lock()
        self._busy = 0
        self._timer: threading.Timer | None = None

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Hold the clock."""
        with self._lock:
            self._busy += 1
            self._cancel()
        try:
            yield
        finally:
            with self._lock:
                self._busy -= 1
                if not self._busy:
                    self._start()

    def stop(self) -> None:
        """Forget about it until somebody is busy again."""
        with self._lock:
            self._cancel()

    def _start(self) -> None:
        if self.seconds > 0:
            self._timer = threading.Timer(self.seconds, self._due)
            self._timer.daemon = True
            self._timer.start()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> None:
        with self._lock:
            # The timer may have fired just before it was cancelled.
            if self._timer is threading.current_thread() and not self._busy:
                self._timer = None
                self._then()
