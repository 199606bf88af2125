"""Has memory become short while chatting? Asked between two passes and now and then in between.

Contract: cheap; the machine is looked at every two seconds at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from specchat.memory.machine import Machine, ram_margin
from specchat.units import format_memory
from specchat.worker import ram

_EVERY: Final = 2.0  # seconds


class Pressure:
    """Answers with the reason why the draft must be released; "" while there is memory."""

    def __init__(
        self,
        machine: Machine,
        available: Callable[[], ram.Room] = ram.available,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # Half of what a plan leaves free: one that only just fits is not undone at once.
        self._floor = ram_margin(machine) // 2
        self._available, self._clock = available, clock
        self._due = clock()

    def __call__(self) -> str:
        now = self._clock()
        if now < self._due:
            return ""
        self._due = now + _EVERY
        room = self._available()
        if room.free >= self._floor:
            return ""
        where = f" {room.bound}" if room.bound else ""
        return (
            f"only {format_memory(room.free)} of memory were left{where}: the draft model was released; "
            "`/speculation draft` brings it back once there is room"
        )
