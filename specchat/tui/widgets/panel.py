"""The metrics panel beside the conversation."""

from __future__ import annotations

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

    def compose(self) -> ComposeResult:
        yield self._body

    def show(self, speculation: Speculation, figures: Figures, info: EngineInfo | None, reason: str) -> None:
        """Bring it up to date."""
        if self.display:
            width = max(20, self.content_size.width or 30)
            self._body.update(rows(speculation, figures, info, self.speeds, one_line(reason), width))
