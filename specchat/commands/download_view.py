"""Showing a pull on the command line: one redrawn block on a terminal, a few plain lines a file elsewhere.

Contract: progress goes to the console given (standard error). `show` consumes the events of `pull` and lets
whatever it raises pass; nothing is decided here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import TracebackType
from typing import Final, Protocol

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from specchat.pairs.progress import Event, Overview, Phase, Plan, Progress, amount, headline, state

_REDRAW: Final = 0.1  # seconds between two redrawings
_STEP: Final = 25  # per cent between two plain lines of a file
_QUIET: Final = 15.0  # seconds between two plain lines about one wait


class View(Protocol):
    """How events are shown."""

    def __enter__(self) -> View: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def update(self, event: Event, overview: Overview) -> None:
        """One more event, which `overview` has taken in already."""


def show(events: Iterable[Event], console: Console, overview: Overview) -> None:
    """Show the events as they come, until they end."""
    redrawn = console.is_terminal and not console.is_dumb_terminal
    with RedrawnView(console) if redrawn else PlainView(console) as view:
        for event in events:
            overview.seen(event)
            view.update(event, overview)


class PlainView:
    """A few lines a file, each written once: for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said: dict[str, tuple[Phase, int]] = {}
        self._waits: dict[str, float] = {}

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, event: Event, overview: Overview) -> None:
        """Write a line if there is news."""
        if isinstance(event, Plan):
            self._line(headline(event))
            return
        if event.phase is Phase.WAITING:
            if not self._waited_lately(event):
                self._line(f"{event.file}: {state(event, overview)}")
            return
        if event.note and event.phase is Phase.DOWNLOADING:
            self._line(f"{event.file}: {event.note}")
        step = event.done * 100 // event.total // _STEP if event.total and event.phase is Phase.DOWNLOADING else 0
        before, self._said[event.file] = self._said.get(event.file), (event.phase, step)
        if before != (event.phase, step):
            self._settled(event, before, overview)

    def _settled(self, event: Progress, before: tuple[Phase, int] | None, overview: Overview) -> None:
        """A file came to another phase, or a good step further."""
        if event.phase is Phase.MAKING:
            self._line(event.file)  # it is the name of the work: "making the target"
        elif event.phase is Phase.VERIFYING:
            self._line(f"{event.file}: checking its sha256")
        elif event.phase not in (Phase.ASKING, Phase.INSTALLING) and before != (Phase.MAKING, 0):
            self._line(f"{event.file}: {state(event, overview)}")

    def _waited_lately(self, event: Progress) -> bool:
        key, now = event.file + event.note, time.monotonic()
        if now - self._waits.get(key, -_QUIET) < _QUIET:
            return True
        self._waits[key] = now
        return False

    def _line(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)


class RedrawnView:
    """One block that is drawn again: a line for each file and one for all of them."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False)
        self._drawn = 0.0

    def __enter__(self) -> RedrawnView:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, event: Event, overview: Overview) -> None:
        """Draw the block again, unless that was done a moment ago."""
        if isinstance(event, Plan):
            self._console.print(Text(headline(event)))
        elif event.note and event.phase is Phase.DOWNLOADING:
            self._console.print(Text(f"{event.file}: {event.note}"))
        now = time.monotonic()
        settled = isinstance(event, Progress) and event.phase in (Phase.DONE, Phase.FAILED)
        if settled or now - self._drawn >= _REDRAW:
            self._drawn = now
            self._live.update(self._block(overview), refresh=True)

    def _block(self, overview: Overview) -> RenderableType:
        grid = Table.grid(padding=(0, 1), expand=True)
        grid.add_column(ratio=2, no_wrap=True, overflow="ellipsis")
        grid.add_column(width=20)
        grid.add_column(ratio=3, overflow="fold")
        for progress in overview.files.values():
            grid.add_row(Text(progress.file), _bar(progress), Text(state(progress, overview)))
        if overview.plan and len(overview.plan.files) > 1:
            words = amount(overview.done, overview.total, overview.speed(), overview.left())
            bar = ProgressBar(total=max(1, overview.total), completed=overview.done)
            grid.add_row(Text("in all", style="bold"), bar, Text(words, style="bold"))
        return grid


def _bar(progress: Progress) -> RenderableType:
    if progress.phase is Phase.DONE:
        return ProgressBar(total=1, completed=1)
    if progress.phase in (Phase.ASKING, Phase.FAILED) or not progress.total:
        return Text("")
    return ProgressBar(total=progress.total, completed=progress.done)
