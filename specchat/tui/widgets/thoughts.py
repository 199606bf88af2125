"""What a model thought before it answered: one line that opens."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widget import Widget
from textual.widgets import Static


def hold_still(widget: Widget) -> None:
    """Have what scrolls around `widget` no longer follow its end: what is opened there would leave the view."""
    for ancestor in widget.ancestors:
        if isinstance(ancestor, VerticalScroll):
            ancestor.release_anchor()


class Thoughts(Vertical):
    """Closed until it is asked for; the line counts along while the thinking goes on."""

    def __init__(self, text: str = "") -> None:
        super().__init__()
        self._text = text
        self._over = bool(text)
        self._head = Static(markup=False, classes="head")
        self._body = Static(markup=False, classes="body")

    def compose(self) -> ComposeResult:
        yield self._head
        yield self._body

    def on_mount(self) -> None:
        self._body.display = False
        self.show(self._text, self._over)

    def show(self, text: str, over: bool) -> None:
        """`text` so far; `over` once the answer has begun."""
        self._text, self._over = text, over
        self.display = bool(text)
        words = len(text.split())
        verb = "thought" if over else "thinking"
        self._head.update(
            f"{'▾' if self._body.display else '▸'} {verb} · {words:,} {'word' if words == 1 else 'words'}"
        )
        if self._body.display:
            self._body.update(text)

    def toggle(self) -> None:
        """Open or close."""
        if self._over:  # else its end is the end, and who opens it wants to see it grow
            hold_still(self)
        self._body.display = not self._body.display
        self.show(self._text, self._over)

    def on_click(self) -> None:
        self.toggle()
