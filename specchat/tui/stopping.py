"""Stopping what the engine does, and ending an engine that does not hear of it.

Contract: `ask` has the running stream of the session stop at the next round. Where it has not stopped some seconds
later the engine is called deaf and the owner is told; from then on `press` ends its process, so that the stream ends
with `EngineKilled`. Nothing here waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from textual.timer import Timer
from textual.widget import Widget

from specchat.session import Session

PATIENCE: Final = 3.0  # seconds; a round takes a tenth of one, a batch of a long prompt may take more than this


class Stopping:
    """One for each screen whose streams can be stopped."""

    def __init__(self, session: Session, owner: Widget, on_deaf: Callable[[], None]) -> None:
        self._session, self._owner, self._on_deaf = session, owner, on_deaf
        self._timer: Timer | None = None
        self.is_deaf = False  # the engine was asked, and did nothing

    def ask(self) -> None:
        """Have the stream stop; asked again, wait on."""
        if self._timer is None:
            self._session.stop()
            self._timer = self._owner.set_timer(PATIENCE, self._wait_no_longer)

    def press(self) -> None:
        """Have the stream stop, by the engine's end where nothing else did it."""
        if self.is_deaf:
            # A process that a driver holds takes its time to die.
            self._owner.run_worker(asyncio.to_thread(self._session.kill), exit_on_error=False)
        else:
            self.ask()

    def over(self) -> bool:
        """The stream has ended: whether it was asked to."""
        timer, self._timer, self.is_deaf = self._timer, None, False
        if timer is not None:
            timer.stop()
        return timer is not None

    def _wait_no_longer(self) -> None:
        self.is_deaf = True
        self._on_deaf()
