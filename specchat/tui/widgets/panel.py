"""The metrics panel beside the conversation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from specchat.engine.policy import Speculation
from specchat.engine.stats import Figures
from specchat.tui.metrics import Speeds, rows
from specchat.tui.text import one_line
from specchat.worker.protocol import EngineInfo

LEAST: Final = 80  # columns below which the panel would leave the conversation too little


class Panel(VerticalScroll, can_focus=False):
    """Hidden until it is asked for, and while there is no room for it."""

    def __init__(self) -> None:
        super().__init__(id="panel")
        self.border_title = Content("Figures")
        self.speeds = Speeds()
        self._body = Static(markup=False)
        self._draw: Callable[[int], Content] | None = None
        self._asked = False

    def toggle(self, columns: int) -> None:
        """Ask for it, or no more, in a window of so many columns."""
        self._asked = not self._asked
        self.fit(columns)

    def fit(self, columns: int) -> None:
        """The window has so many columns."""
        self.display = self._asked and columns >= LEAST

    def compose(self) -> ComposeResult:
        yield self._body

    def show(self, speculation: Speculation, figures: Figures, info: EngineInfo | None, reason: str) -> None:
        """Bring it up to date."""
        self._draw = partial(rows, speculation, figures, info, self.speeds, one_line(reason))
        self.on_resize()

    def on_resize(self) -> None:
        # Opened by its key it has no width yet: that comes with the layout.
        if self.display and self._draw is not None and (width := self.scrollable_content_region.width):
            self._body.update(self._draw(width))


class WithPanel(Horizontal):
    """What the panel stands beside, as wide as the window."""

    def on_resize(self, event: events.Resize) -> None:
        self.query_one(Panel).fit(event.size.width)
