"""The conversation: its turns from the first to the last, following the end unless the reader scrolled up."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widget import Widget
from textual.widgets import Static

from specchat.tui.actions import Place, bindings
from specchat.tui.text import clean


class Transcript(VerticalScroll):
    """Scrolls; knows nothing of engines."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.CONVERSATION)]

    def __init__(self) -> None:
        super().__init__(id="transcript")
        # At least as high as the view: an anchored scroll view puts the end of its content at its own lower edge,
        # even if that leaves the upper part empty.
        self._turns = Vertical(id="turns")

    def compose(self) -> ComposeResult:
        yield self._turns

    async def add(self, *turns: Widget) -> None:
        """Put turns at the end and follow it."""
        await self._turns.mount(*turns)
        self.follow()

    async def add_welcome(self, welcome: Widget) -> None:
        """Show `welcome` in the middle until `remove` takes it away."""
        self._turns.add_class("-empty")
        await self._turns.mount(welcome)

    async def begin(self) -> None:
        """Take away the welcome and whatever an unsuccessful message left behind."""
        self._turns.remove_class("-empty")
        await self._turns.query("Welcome, .failure, .-unsent").remove()

    async def clear(self) -> None:
        """Take every turn away."""
        await self._turns.remove_children()

    async def add_notice(self, sentence: str, classes: str = "notice") -> None:
        """Put a sentence of the program's own between the turns."""
        await self.add(Static(clean(sentence), markup=False, classes=f"turn {classes}"))

    def follow(self) -> None:
        """Go to the end and stay there as it grows."""
        # Asked for anew every time: once released, an anchor takes hold again only at the exact bottom.
        self.anchor()

    @property
    def at_end(self) -> bool:
        """Whether the end is in sight."""
        return self.scroll_offset.y >= self.max_scroll_y

    def action_line_down(self) -> None:
        self.scroll_relative(y=1, animate=False)

    def action_line_up(self) -> None:
        self.scroll_relative(y=-1, animate=False)

    def action_top(self) -> None:
        self.scroll_home(animate=False)

    def action_bottom(self) -> None:
        self.follow()
