"""What commands print with: aligned columns, sizes, ages, and the progress of long work.

Contract: results go to standard output, progress to standard error. Progress redraws one line on a terminal;
elsewhere each new thing being done is one plain line.
"""

from __future__ import annotations

import math
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from specchat.pairs.library import Step
from specchat.units import format_bytes

_REDRAW: Final = 0.1  # seconds between two redraws of the progress line
_AGES: Final = ((86400 * 365, "year"), (86400 * 30, "month"), (86400, "day"), (3600, "hour"), (60, "minute"))


def columns(rows: Iterable[Sequence[str]], headers: Sequence[str] = (), right: Collection[int] = ()) -> list[str]:
    """Lines in which the cells of each column begin (or, for columns in `right`, end) at one place."""
    cells = [*([headers] if headers else []), *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(_padded(row, widths, right)).rstrip() for row in cells]


def _padded(row: Sequence[str], widths: Sequence[int], right: Collection[int]) -> list[str]:
    return [
        cell.rjust(width) if index in right else cell.ljust(width)
        for index, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]


def wrapped(lines: Iterable[str], indent: int = 0) -> Iterator[str]:
    """The same, with what is wider than the terminal broken between words; whole where output is no terminal."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else math.inf
    for line in lines:
        if len(line) <= width:
            yield line
        else:
            yield from textwrap.wrap(
                line, int(width), subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
            )


def age(seconds: float) -> str:
    """How long ago, for a person: `3 hours ago`."""
    for length, unit in _AGES:
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"


@contextmanager
def unwinding() -> Iterator[None]:
    """SIGTERM ends what is inside through every `finally`, as Ctrl+C does: a hidden cursor comes back."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def say(sentences: Iterable[str]) -> None:
    """Notices, a line each, on standard error."""
    for sentence in sentences:
        print(f"specchat: {sentence}", file=sys.stderr, flush=True)


def follow(steps: Iterable[Step]) -> None:
    """Run the work that `steps` is, showing where it stands on standard error."""
    live = sys.stderr.isatty()
    text, drawn, pace = "", 0.0, Pace()
    try:
        for step in steps:
            if step.text != text and not live:
                print(step.text, file=sys.stderr, flush=True)
            now = time.monotonic()
            if live and (step.text != text or now - drawn >= _REDRAW):
                drawn = now
                # \x1b[K: what is left of a longer line goes.
                print(f"\r{_line(step)}{pace.left(step, now)}\x1b[K", end="", file=sys.stderr, flush=True)
            text = step.text
    finally:
        if live and text:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


class Pace:
    """How long the rest of some parts will take, judged by those that are done."""

    SURE: Final = 10.0  # seconds of work before which a guess would only jump about

    def __init__(self) -> None:
        self._total: int | None = None
        self._began, self._from = 0.0, 0

    def left(self, step: Step, now: float) -> str:
        """To append to the line of `step`; empty for bytes, and where there is nothing to judge by."""
        if step.total != self._total:
            self._total, self._began, self._from = step.total, now, step.done
        done, passed = step.done - self._from, now - self._began
        if step.in_bytes or not step.total or done <= 0 or passed < self.SURE:
            return ""
        minutes = math.ceil(passed * (step.total - step.done) / done / 60)
        return f", about {minutes} minute{'s' if minutes > 1 else ''} left"


def _line(step: Step) -> str:
    if not step.total:
        return f"{step.text} ..."
    percent = f"{step.done * 100 // step.total} %"
    if step.in_bytes:
        return f"{step.text}: {percent} of {format_bytes(step.total)}"
    return f"{step.text}: {percent}"
