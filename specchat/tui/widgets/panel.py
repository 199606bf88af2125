"""The metrics panel beside the conversation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from specchat.engine.policy import Speculation
from specchat.engine.stats import Figures
from specchat.tui.metrics import Speeds, rows
from specchat.tui.text import one_line
from specchat.worker.protocol import EngineInfo


class Panel(VerticalScroll, can_focus=False):
    """Hidden until it is asked for."""

    def __init__(self) -> None:
        super().__init__(id="panel")
        self.border_title = Content("Figures")
        self.speeds = Speeds()
        self._body = Static(markup=False)
        self._draw: Callable[[int], Content] | None = None

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
