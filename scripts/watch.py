"""Long work that a person waits for: run into a log, with its progress shown; one at a time; ended as a whole.

Contract: standard library alone, POSIX. What is shown goes to standard error: one line redrawn on a terminal, a plain
line every 30 s elsewhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

STEP = re.compile(r"^\s*\[(\d+)/(\d+)\]", re.MULTILINE)  # as ninja counts
PHASE = re.compile(  # as pip says
    r"^\s*((?:Collecting|Downloading|Building wheel for) [^\s(]+|Installing (?:build dependencies|collected packages))",
    re.MULTILINE,
)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass(slots=True)
class StatusLine:
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    every: float = 30.0  # seconds between plain lines
    started: float = field(default_factory=time.monotonic)
    printed: float = 0.0  # seconds after the start

    def show(self, text: Callable[[float], str]) -> None:
        """Shows `text(elapsed seconds)`, if it is time to."""
        elapsed = time.monotonic() - self.started
        if self.stream.isatty():
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\033[K{text(elapsed)[:width]}", end="", file=self.stream, flush=True)
        elif elapsed - self.printed >= self.every:
            print(text(elapsed), file=self.stream, flush=True)
            self.printed = elapsed

    def clear(self) -> None:
        if self.stream.isatty():
            print("\r\033[K", end="", file=self.stream, flush=True)


def clock(seconds: float) -> str:
    """Minutes and seconds: 4:07."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


@dataclass(slots=True)
class Progress:
    """How far a pip command has come, read from what it prints."""

    title: str
    estimate: float | None = None  # seconds it should take, where that is known beforehand
    phase: str = "starting"
    step: int = 0
    steps: int = 0

    def read(self, text: str) -> None:
        for step, steps in STEP.findall(text):
            if int(steps) >= self.steps:  # a smaller build inside the build counts steps of its own
                self.step, self.steps = int(step), int(steps)
        if phases := PHASE.findall(text):
            self.phase = phases[-1]

    def expected(self, elapsed: float) -> float | None:
        """Seconds in all: the estimate, until the steps tell it better. The first ones are short and promise much."""
        if self.step > self.steps / 2 or (self.step and self.estimate and elapsed > self.estimate):
            return elapsed * self.steps / self.step
        return self.estimate

    def line(self, elapsed: float) -> str:
        expected = self.expected(elapsed)
        whole = f" of about {clock(expected)}" if expected and expected > elapsed else ""
        where = f"step {self.step} of {self.steps}" if self.steps else self.phase
        return f"{self.title}: {clock(elapsed)}{whole}, {where}"


def run_logged(command: Sequence[str], log: Path, progress: Progress, env: Mapping[str, str], lock: int) -> int:
    """Runs a command with its output appended to the log and its progress shown; returns its exit status.

    It gets a process group of its own, so that an interruption ends all that it started, and holds the lock too: if
    this process is killed outright, the next set-up still waits until nothing works on the environment any more.
    """
    with log.open("ab") as out, log.open(errors="replace") as tail, held_back() as signals:
        out.write(f"\n$ {shlex.join(command)}\n".encode())
        out.flush()
        tail.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[lock],
        )
        line = StatusLine()
        try:
            while process.poll() is None and not signals:
                progress.read(tail.read())
                line.show(progress.line)
                time.sleep(0.2)
            line.clear()
        finally:
            if process.poll() is None:
                end_group(process)
    if signals:
        say("Stopping, and removing what was begun.")
        raise KeyboardInterrupt
    return process.returncode


@contextlib.contextmanager
def held_back() -> Iterator[list[int]]:
    """Collects the signals that would end this process: none may strike between a command's start and the watch."""
    arrived: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: arrived.append(number))
    try:
        yield arrived
    finally:
        for number in numbers:
            signal.signal(number, before[number])


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and all that it started, at once: asked politely, pip takes its time to tidy up."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[int]:
    """Waits, visibly, for the lock of `path`; yields its descriptor. The kernel drops it with its last holder."""
    line = StatusLine(printed=-30.0)  # without a terminal too, the wait is said at once
    with path.open("a") as file:
        while not try_lock(file):
            line.show(lambda elapsed: f"Waiting for another set-up of this checkout: {clock(elapsed)}")
            time.sleep(0.2)
        line.clear()
        yield file.fileno()


def try_lock(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: go on without
        return True
    return True
