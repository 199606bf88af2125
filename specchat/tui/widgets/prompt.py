"""The box in which messages are written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.content import Content
from textual.message import Message
from textual.widgets import TextArea

from specchat.tui.actions import Place, bindings
from specchat.tui.text import clean


class PromptBox(TextArea):
    """A text area that sends on Enter, grows to a few lines, and lets no control character in."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.PROMPT)]

    @dataclass
    class Submitted(Message):
        """Enter was pressed. The box is empty again at once: what is typed before this is handled is the next message.

        While `completing` it is left as it is.
        """

        text: str

    @dataclass
    class Stepped(Message):
        """Up (-1) or Down (1) was pressed at the box's edge, or anywhere while `completing`."""

        by: int

    completing = False  # a list of completions is open: Up and Down are its keys

    def __init__(self) -> None:
        super().__init__(
            id="prompt",
            compact=True,
            highlight_cursor_line=False,
            placeholder=Content("Ask anything, or type / for commands"),
        )

    async def _on_key(self, event: events.Key) -> None:
        # TextArea would insert a newline; left alone, Enter reaches the bindings, where it can be re-mapped.
        if event.key == "enter":
            event.prevent_default()

    async def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        self.replace(clean(event.text), *self.selection, maintain_selection_offset=False)
        self.scroll_cursor_visible()

    def replace_all(self, text: str) -> None:
        """Put `text` in the box, as an edit that can be undone, and the cursor at its end."""
        self.replace(clean(text), (0, 0), self.document.end, maintain_selection_offset=False)
        self.move_cursor(self.document.end)

    def action_send(self) -> None:
        self.post_message(self.Submitted(self.text))
        if not self.completing:
            self.replace_all("")

    def action_newline(self) -> None:
        self.replace("\n", *self.selection, maintain_selection_offset=False)
        self.scroll_cursor_visible()

    def action_previous(self) -> None:
        if self.completing or self.cursor_at_first_line:
            self.post_message(self.Stepped(-1))
        else:
            self.action_cursor_up()

    def action_next(self) -> None:
        if self.completing or self.cursor_at_last_line:
            self.post_message(self.Stepped(1))
        else:
            self.action_cursor_down()

    async def action_complete(self) -> None:
        # Not by a message: the key after Tab is meant for what Tab leads to.
        await self.run_action("screen.complete")

    async def action_leave_or_delete(self) -> None:
        if self.text:
            self.action_delete_right()
        else:
            await self.app.run_action("quit")

    async def action_page_back(self) -> None:
        await self.run_action("screen.page(-1)")

    async def action_page_on(self) -> None:
        await self.run_action("screen.page(1)")
