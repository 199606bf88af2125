"""All conversations: searched, opened, renamed, deleted and brought back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from specchat.history import Conversation, HistoryError, Hit, Store
from specchat.tui.actions import ACTIONS, Place, bindings, key_name, key_of
from specchat.tui.text import clean, one_line
from specchat.tui.widgets.hints import Hints
from specchat.tui.widgets.note import Note

_PAGE: Final = 200
_DIM: Final = "$foreground 60%"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the list."""

    conversation: str
    content: Content


class ConversationsScreen(ModalScreen[Conversation | None]):
    """Answers with the conversation to open, None to stay."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.LIST)]
    AUTO_FOCUS = "#search"

    def __init__(self, store: Store, current: str, keymap: Mapping[str, str], query: str = "") -> None:
        super().__init__()
        self._keymap = keymap
        self._store, self._current, self._query = store, current, query
        self._entries: list[Entry] = []
        self._deleted: list[str] = []
        self._renaming = ""
        self._reasoning = False

    def compose(self) -> ComposeResult:
        with Vertical(id="conversations") as box:
            box.border_title = Content("Conversations")
            yield Input(self._query, placeholder="Search titles, questions and answers", id="search", compact=True)
            yield Input(placeholder="New title", id="rename", compact=True)
            yield OptionList(id="list", markup=False)
            yield Note("list-note")
            yield Hints(id="list-hints")

    def on_mount(self) -> None:
        self.query_one("#rename", Input).display = False
        labels = {action.name: "" for action in ACTIONS if action.place is Place.LIST}
        self.query_one(Hints).show_actions(labels, self._keymap)
        self._refresh()

    # ---- the list

    def _refresh(self, at: int = 0) -> None:
        words = self.query_one("#search", Input).value
        try:
            self._entries = self._found(words) if words.strip() else self._all()
        except HistoryError as error:
            self._entries = []
            self._say(str(error), "error")
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options(Option(entry.content) for entry in self._entries)
        options.highlighted = min(at, len(self._entries) - 1) if self._entries else None
        if not self._entries:
            self._say("Nothing was found." if words.strip() else "No conversation is saved yet.")
        else:
            self.query_one(Note).hush()

    def _all(self) -> list[Entry]:
        now = datetime.now(UTC)
        return [Entry(c.id, _line(c, now, c.id == self._current)) for c in self._store.conversations(limit=_PAGE)]

    def _found(self, words: str) -> list[Entry]:
        now = datetime.now(UTC)
        hits = self._store.search(words, reasoning=self._reasoning, limit=_PAGE)
        return [Entry(hit.conversation, _hit(hit, now)) for hit in hits]

    @on(Input.Changed, "#search")
    def _searched(self) -> None:
        self._refresh()

    @property
    def _chosen(self) -> Entry | None:
        at = self.query_one(OptionList).highlighted
        return self._entries[at] if at is not None and at < len(self._entries) else None

    def _say(self, sentence: str, severity: str = "information") -> None:
        self.query_one(Note).say(sentence, severity)

    # ---- what can be done

    def action_list_up(self) -> None:
        self.query_one(OptionList).action_cursor_up()

    def action_list_down(self) -> None:
        self.query_one(OptionList).action_cursor_down()

    @on(Input.Submitted, "#search")
    @on(OptionList.OptionSelected)
    def _open(self) -> None:
        if self._chosen is not None:
            try:
                self.dismiss(self._store.conversation(self._chosen.conversation))
            except HistoryError as error:
                self._say(str(error), "error")

    async def action_run_hint(self, name: str) -> None:
        """A hint was clicked."""
        await self.run_action(name)

    def action_close_list(self) -> None:
        if self._renaming:
            self._end_renaming()
        else:
            self.dismiss(None)

    def action_search_reasoning(self) -> None:
        self._reasoning = not self._reasoning
        self._refresh()
        self._say("Reasoning is searched too." if self._reasoning else "Reasoning is not searched.")

    def action_rename(self) -> None:
        if self._chosen is None:
            return
        self._renaming = self._chosen.conversation
        field = self.query_one("#rename", Input)
        field.value = clean(self._store.conversation(self._renaming).title)
        field.display = True
        field.focus()

    @on(Input.Submitted, "#rename")
    def _renamed(self, event: Input.Submitted) -> None:
        try:
            self._store.rename(self._renaming, event.value)
        except HistoryError as error:
            self._say(str(error), "error")
        self._end_renaming()

    def _end_renaming(self) -> None:
        self._renaming = ""
        self.query_one("#rename", Input).display = False
        self.query_one("#search", Input).focus()
        self._refresh(self.query_one(OptionList).highlighted or 0)

    def action_delete(self) -> None:
        if self._chosen is None:
            return
        gone = self._chosen.conversation
        try:
            title = self._store.conversation(gone).title
            self._store.delete(gone)
        except HistoryError as error:
            self._say(str(error), "error")
            return
        self._deleted.append(gone)
        self._refresh(self.query_one(OptionList).highlighted or 0)
        back = key_name(key_of("undelete", self._keymap))
        self._say(f"Deleted: {one_line(title, 50)}. {back} brings it back.")

    def action_undelete(self) -> None:
        if not self._deleted:
            self._say("Nothing was deleted here.")
            return
        back = self._deleted.pop()
        try:
            self._store.restore(back)
        except HistoryError as error:
            self._say(str(error), "error")
            return
        self._refresh()
        self._say("It is back.")


def _line(conversation: Conversation, now: datetime, current: bool) -> Content:
    turns = "1 turn" if conversation.messages == 1 else f"{conversation.messages:,} turns"
    unsent = " · unsent text" if conversation.unsent else ""
    return Content.assemble(
        ("● " if current else "  ", "$text-primary"),
        (one_line(conversation.title, 70), "$foreground"),
        (f"  {ago(conversation.updated, now)} · {turns}{unsent}", _DIM),
    )


def _hit(hit: Hit, now: datetime) -> Content:
    parts: list[Content | tuple[str, str]] = [
        (f"{one_line(hit.title, 60)}", "$foreground"),
        (f"  {ago(hit.updated, now)} · {_WHERE.get(hit.where) or _WHERE[hit.role or 'title']}\n  ", _DIM),
    ]
    at = 0
    for start, end in hit.spans:
        parts += [(clean(hit.excerpt[at:start]), _DIM), (clean(hit.excerpt[start:end]), "$text-warning bold")]
        at = end
    return Content.assemble(*parts, (clean(hit.excerpt[at:]), _DIM))


_WHERE: Final = {"reasoning": "reasoning", "title": "title", "user": "question", "assistant": "answer"}


def ago(when: datetime, now: datetime) -> str:
    """How long ago, as a list says it."""
    passed = now - when
    if passed < timedelta(minutes=1):
        return "now"
    if passed < timedelta(hours=1):
        return f"{passed.seconds // 60} min ago"
    if passed < timedelta(days=1):
        return f"{passed.seconds // 3600} h ago"
    if passed < timedelta(days=7):
        return "yesterday" if passed.days == 1 else f"{passed.days} days ago"
    return f"{when.astimezone():%Y-%m-%d}"
