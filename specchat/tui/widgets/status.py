"""The status line."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.widget import Widget

from specchat.tui.fit import Segment, fit


class StatusLine(Widget):
    """One line of figures, fitted to the width at every change of either."""

    def __init__(self, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.auto_links = False  # no underlines: what can be clicked looks like the rest
        self._segments: Sequence[Segment] = ()

    def show(self, segments: Sequence[Segment]) -> None:
        """Show these from now on."""
        self._segments = segments
        self.refresh()

    def render(self) -> Content:
        return fit(self._segments, self.content_size.width) if self._segments else Content()

    def on_resize(self) -> None:
        self.refresh()
