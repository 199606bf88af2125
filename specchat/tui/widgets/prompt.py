"""The box in which messages are written.

Contract: a long paste is one line in it, which edits take or leave as a whole; `whole` is the text with everything
that was pasted, `kept` the form of it that `restore` shows again as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.content import Content
from textual.document._document import EditResult
from textual.document._edit import Edit
from textual.message import Message
from textual.widgets import TextArea
from textual.widgets.text_area import Selection

from specchat.tui.actions import ACTIONS, Place, bindings, keys_of
from specchat.tui.folds import Folds, is_long
from specchat.tui.text import clean


class PromptBox(TextArea):
    """A text area that sends on Enter, folds long pastes, grows to a few lines, and lets no control character in."""

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

    @dataclass
    class Folded(Message):
        """A long paste was put in as one line."""

        text: str

    completing = False  # a list of completions is open: Up and Down are its keys

    def __init__(self, keymap: Mapping[str, str]) -> None:
        super().__init__(
            id="prompt",
            compact=True,
            highlight_cursor_line=False,
            placeholder=Content("Ask anything, or type / for commands"),
        )
        self._keymap = keymap
        self._folds = Folds()
        self._actions: dict[str, str] = {}

    def _on_mount(self, event: events.Mount) -> None:
        super()._on_mount(event)
        self._actions = {
            key: binding.action
            for key, bound in self._bindings.key_to_bindings.items()
            for binding in bound
            if binding.id is None
        } | {
            key: action.name
            for action in ACTIONS
            if action.place is Place.PROMPT
            for key in keys_of(action, self._keymap)
        }

    async def _on_key(self, event: events.Key) -> None:
        """Carry out the box's own keys here and now.

        Textual would have a bound key go up to the application first: whatever is typed after it meanwhile is put in
        before it, so that "ab", Backspace, "c" leaves "ab" on a busy machine, and what follows Enter is sent with it.
        """
        focused = self.screen.focused
        if focused is not None and focused is not self:  # it was typed after a key that moved the focus
            event.prevent_default().stop()
            self.app.post_message(events.Key(event.key, event.character))
            return
        action = self._actions.get(event.key)
        if action is not None and await self.app.run_action(action, self):
            event.prevent_default().stop()
        elif event.key == "enter":  # mapped to nothing here: a newline by TextArea's own hand would surprise
            event.prevent_default()

    async def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        text = clean(event.text)
        if is_long(text, self.wrap_width or self.app.size.width):
            self.post_message(self.Folded(text))
            text = self._folds.fold(text)
        self.replace(text, *self.selection, maintain_selection_offset=False)
        self.scroll_cursor_visible()

    @property
    def whole(self) -> str:
        """What it holds, with what was pasted."""
        return self._folds.expand(self.text)

    @property
    def kept(self) -> str:
        """What it holds, as it is kept on disk."""
        return self._folds.marked(self.text)

    @property
    def selected_text(self) -> str:
        return self._folds.expand(super().selected_text)

    def edit(self, edit: Edit) -> EditResult:
        """Carry out an edit; one that would cut a folded paste takes the whole of it, one inside goes behind it."""
        top, bottom = edit.top, edit.bottom
        if (span := self._fold_around(bottom)) is not None:
            bottom = (bottom[0], span[1])
        if edit.top == edit.bottom:
            top = bottom
        elif (span := self._fold_around(top)) is not None:
            top = (top[0], span[0])
        if (top, bottom) == (edit.top, edit.bottom):
            return super().edit(edit)
        return super().edit(Edit(edit.text, top, bottom, edit.maintain_selection_offset))

    def _fold_around(self, location: tuple[int, int]) -> tuple[int, int] | None:
        row, column = location
        # TextArea cuts the last line with an edit that ends on the line after it.
        return self._folds.around(self.document[row], column) if row < self.document.line_count else None

    def undo(self) -> None:
        if self.history.undo_stack:
            self._leave_lines()
            super().undo()

    def redo(self) -> None:
        if self.history.redo_stack:
            self._leave_lines()
            super().redo()

    def _leave_lines(self) -> None:
        # Textual 8.2.8 lays out anew before it moves the cursor, which fails on a line that is gone by then.
        self.selection = Selection.cursor((0, 0))

    def replace_all(self, text: str) -> None:
        """Put `text` in the box, as an edit that can be undone, and the cursor at its end."""
        self._put(self._folds.refold(clean(text)))

    def restore(self, kept: str) -> None:
        """Put what was `kept` in the box, long pastes folded as they were."""
        self._put(clean(self._folds.restore(kept)))

    def as_kept(self, text: str) -> str:
        """The `kept` form of another text."""
        return self._folds.marked(self._folds.refold(text))

    def _put(self, text: str) -> None:
        self.replace(text, (0, 0), self.document.end, maintain_selection_offset=False)
        self.move_cursor(self.document.end)

    def action_unfold_pastes(self) -> None:
        self._put(self.whole)

    def action_send(self) -> None:
        self.post_message(self.Submitted(self.whole))
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
        # Not by a message: the key after Tab is meant for where Tab leads to.
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
