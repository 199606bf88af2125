"""What a download says while it works: immutable values, and the arithmetic that makes a sentence of them.

Contract: nothing here prints, waits or touches a file. `Progress` is about one file, `Plan` about all of
them before the first byte; `Overview` folds a stream of both into bytes, speed and time left.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from specchat.units import format_bytes


class Phase(StrEnum):
    """Where one file stands. A file passes through them in this order; WAITING may come in between."""

    ASKING = "asking"  # size, hash and commit are asked of the hub
    WAITING = "waiting"  # for a lock, a rate limit or a server: `note` says which, `seconds` how long
    DOWNLOADING = "downloading"
    MAKING = "making"  # other work on this machine, of which `file` is the name
    VERIFYING = "verifying"  # `done` counts hashed bytes
    DAMAGED = "damaged"  # what is here has the wrong hash; it is fetched or made again
    INSTALLING = "installing"  # written through to the disk and renamed
    DONE = "done"
    FAILED = "failed"  # `note` is the sentence; other files go on


@dataclass(frozen=True, slots=True)
class Progress:
    """One file's state. `seconds` is what is left of a wait, None where that is open.

    `done` and `total` count bytes, or the parts of a model being made where `in_bytes` is false.
    """

    file: str
    phase: Phase
    done: int = 0
    total: int | None = None
    note: str = ""
    seconds: float | None = None
    in_bytes: bool = True


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file about to be fetched: its size, and the bytes of it that an earlier run left here."""

    file: str
    bytes: int
    here: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What is going to be fetched, said once before the first byte; `free` is the room on that disk."""

    files: tuple[PlannedFile, ...]
    free: int

    @property
    def missing(self) -> int:
        """Bytes still to come."""
        return sum(file.bytes - file.here for file in self.files)


Event: TypeAlias = Progress | Plan

_WINDOW: Final = 5.0  # seconds over which the speed is taken: long enough to read, short enough to be true


class Meter:
    """Speed and time left of one file, or of several together.

    `seen` is fed the bytes that are here by now, a figure that may fall when a file starts again; bytes that
    were here before the first call are not speed.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque()

    def seen(self, done: int) -> None:
        """`done` bytes are here now."""
        now = self._clock()
        if self._seen and done < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now, done))
        while self._seen[0][0] < now - _WINDOW and len(self._seen) > 2:
            self._seen.popleft()

    @property
    def speed(self) -> float:
        """Bytes a second over the last seconds; 0 where nothing can be said yet."""
        if len(self._seen) < 2:
            return 0.0
        (begun, before), (_, now) = self._seen[0], self._seen[-1]
        elapsed = self._clock() - begun
        return (now - before) / elapsed if elapsed > 0 else 0.0

    def left(self, remaining: int) -> float | None:
        """Seconds until `remaining` bytes have come at this speed, or None while that is unknown."""
        return remaining / self.speed if self.speed > 0 else None


class Overview:
    """Everything that was said so far: each file's latest state, and the sums over all planned files."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.plan: Plan | None = None
        self.files: dict[str, Progress] = {}
        self._clock = clock
        self._come: dict[str, int] = {}  # bytes of planned files that are on this disk
        self._meters: dict[str, Meter] = {}
        self._all = Meter(clock)

    def seen(self, event: Event) -> None:
        """Take in one event."""
        if isinstance(event, Plan):
            self.plan = event
            self._come = {file.file: file.here for file in event.files}
            self._all.seen(self.done)
            return
        self.files[event.file] = event
        if event.file not in self._come:
            return
        if event.phase is Phase.DOWNLOADING:
            self._come[event.file] = event.done
            self._meters.setdefault(event.file, Meter(self._clock)).seen(event.done)
        elif event.phase in (Phase.VERIFYING, Phase.INSTALLING, Phase.DONE):
            self._come[event.file] = event.total or self._come[event.file]
        self._all.seen(self.done)

    @property
    def done(self) -> int:
        """Bytes of the planned files that are here."""
        return sum(self._come.values())

    @property
    def total(self) -> int:
        """Bytes of the planned files."""
        return sum(file.bytes for file in self.plan.files) if self.plan else 0

    def speed(self, file: str | None = None) -> float:
        """Bytes a second of a file, or of all together."""
        meter = self._all if file is None else self._meters.get(file)
        return meter.speed if meter else 0.0

    def left(self, file: str | None = None) -> float | None:
        """Seconds until a file, or everything, has come at this speed; None where that is unknown."""
        if file is None:
            return self._all.left(self.total - self.done)
        state, meter = self.files.get(file), self._meters.get(file)
        return meter.left(state.total - state.done) if state and state.total and meter else None


# -- in words ----------------------------------------------------------------------------------------------


def duration(seconds: float) -> str:
    """A time as people say it: 45 s, 3 min 20 s, 1 h 5 min."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole < 600 else f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def headline(plan: Plan) -> str:
    """What is going to be fetched, and whether there is room."""
    here = sum(file.here for file in plan.files)
    kept = f" ({format_bytes(here)} of it here already)" if here else ""
    total = format_bytes(sum(file.bytes for file in plan.files))
    count = "1 file" if len(plan.files) == 1 else f"{len(plan.files)} files"
    return f"{count}, {total}{kept}; {format_bytes(plan.free)} free on the disk"


def amount(done: int, total: int, speed: float, left: float | None) -> str:
    """Bytes, speed and time left."""
    parts = [f"{format_bytes(done)} of {format_bytes(total)}"]
    if speed >= 1:
        parts.append(f"{format_bytes(speed)}/s")
    if left is not None and speed >= 1:
        parts.append(f"{duration(left)} left")
    return ", ".join(parts)


def state(progress: Progress, overview: Overview) -> str:
    """One file's state in words."""
    percent = f" {progress.done * 100 // progress.total} %" if progress.total else ""
    match progress.phase:
        case Phase.ASKING:
            return "asking the hub"
        case Phase.WAITING:
            wait = "waiting" if progress.seconds is None else f"again in {duration(progress.seconds)}"
            return f"{wait}: {progress.note}"
        case Phase.DOWNLOADING:
            file = progress.file
            return amount(progress.done, progress.total or 0, overview.speed(file), overview.left(file))
        case Phase.VERIFYING:
            return f"checking its sha256{percent}"
        case Phase.DAMAGED:
            return "damaged, to be replaced"
        case Phase.INSTALLING:
            return "writing through to the disk"
        case Phase.MAKING:
            return f"working{percent}"
        case Phase.DONE:
            return "ready"
        case Phase.FAILED:
            return "failed"
