"""One blocking generator (of the session, mostly) run in a thread, its events handed to the screen in batches.

Contract: the thread touches nothing but the queue. The screen calls `take` about ten times a second, which never
blocks; after it has returned `ended` the thread has nothing more to say. Ending a stream early is the session's
business (`stop` or `close` make its generator return).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Stream(Generic[T]):
    """Iterates `events` in a daemon thread from the moment it is made."""

    def __init__(self, events: Iterator[T], name: str) -> None:
        self.error: Exception | None = None  # what the generator raised; set before `ended` is reported
        self._events = events
        self._queue: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for event in self._events:
                self._queue.put(event)
        except Exception as error:
            self.error = error
        finally:
            self._done.set()

    def take(self) -> tuple[list[T], bool]:
        """The events that came since the last call, and whether they are the last ones."""
        ended = self._done.is_set()  # read before the queue: what was put before `ended` is then taken with it
        events = []
        while True:
            try:
                events.append(self._queue.get_nowait())
            except queue.Empty:
                return events, ended

    def join(self, timeout: float) -> bool:
        """Wait for the thread's end, `timeout` seconds at most; False if it still runs."""
        self._thread.join(timeout)
        return not self._thread.is_alive()
