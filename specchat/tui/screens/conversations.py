"""All conversations: searched, opened, renamed, deleted and brought back."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
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

from specchat.errors import SpecchatError
from specchat.history import Conversation, Hit, Store
from specchat.tui.actions import ACTIONS, Place, bindings, key_name, key_of
from specchat.tui.screens.windows import LOOK
from specchat.tui.text import as_sentence, clean, one_line
from specchat.tui.told import Told
from specchat.tui.widgets.hints import Hints
from specchat.tui.widgets.note import Note

_PAGE: Final = 200
_NAME: Final = 200  # characters of unsent text that a line is made from: a box may hold millions
_DIM: Final = "$foreground 60%"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the list."""

    conversation: str
    content: Content


class ConversationsScreen(Told, ModalScreen[Conversation | None]):
    """Answers with the conversation to open, None to stay."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.LIST)]
    AUTO_FOCUS = "#search"

    def __init__(self, store: Store, current: str, keymap: Mapping[str, str], query: str = "") -> None:
        super().__init__()
        self._keymap = keymap
        self._store, self._current, self._query = store, current, query
        self._entries: list[Entry] = []
        self._last: Conversation | None = None  # of those that are listed, if there may be more
        self._version = -1
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
        self.watch(self.query_one(OptionList), "scroll_y", self._want_more, init=False)
        self.set_interval(LOOK, self.look)
        self._version = self._store.version()
        self._refresh()

    # ---- the list

    def _refresh(self, at: int = 0) -> None:
        words = self._words
        self._put(self._found(words) if words else self._page(), at)
        if not self._entries:
            self._say("Nothing was found." if words else "No conversation is saved yet.")
        else:
            self.query_one(Note).hush()

    @property
    def _words(self) -> str:
        return self.query_one("#search", Input).value.strip()

    def _put(self, entries: list[Entry], at: int) -> None:
        self._entries = entries
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options(Option(entry.content) for entry in entries)
        options.highlighted = min(at, len(entries) - 1) if entries else None
        self.call_after_refresh(self._want_more)

    def _page(self, after: Conversation | None = None, least: int = 0) -> list[Entry]:
        now, limit = datetime.now(UTC), max(_PAGE, least)
        page = self._store.conversations(limit, after)
        self._last = page[-1] if len(page) == limit else None
        return [Entry(c.id, _line(c, now, c.id == self._current)) for c in page]

    def _want_more(self) -> None:
        """List more if the end of what is listed is less than a screenful away (an entry takes a line at least)."""
        options = self.query_one(OptionList)
        with self.telling():  # the list's own task calls this when it is scrolled, and must not end of it
            while self._last is not None and options.option_count < options.scroll_y + 2 * options.size.height:
                page = self._page(self._last)
                self._entries += page
                options.add_options(Option(entry.content) for entry in page)

    def look(self) -> None:
        """Bring the list up to date if another window has written something; the highlighted one stays it."""
        with suppress(SpecchatError):  # whoever does something will hear of it
            version = self._store.version()
            if version == self._version or self._renaming or self._words:
                return
            self._version = version
            options, chosen = self.query_one(OptionList), self._chosen
            entries = self._page(least=len(self._entries))
            if entries != self._entries:
                y, ids = options.scroll_y, [entry.conversation for entry in entries]
                at = options.highlighted or 0
                self._put(entries, ids.index(chosen.conversation) if chosen and chosen.conversation in ids else at)
                options.scroll_to(y=y, animate=False)

    def _found(self, words: str) -> list[Entry]:
        self._last = None
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

    def tell(self, error: SpecchatError) -> None:
        self._say(as_sentence(error), "error")

    # ---- what can be done

    def action_list_up(self) -> None:
        self.query_one(OptionList).action_cursor_up()

    def action_list_down(self) -> None:
        self.query_one(OptionList).action_cursor_down()

    @on(Input.Submitted, "#search")
    @on(OptionList.OptionSelected)
    def _open(self) -> None:
        if self._chosen is not None:
            self.dismiss(self._store.conversation(self._chosen.conversation))

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
        title = self._store.conversation(self._chosen.conversation).title
        self._renaming = self._chosen.conversation
        field = self.query_one("#rename", Input)
        field.value = clean(title)
        field.display = True
        field.focus()

    @on(Input.Submitted, "#rename")
    def _renamed(self, event: Input.Submitted) -> None:
        self._store.rename(self._renaming, event.value)
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
        title = _name(self._store.conversation(gone))
        self._store.delete(gone)
        self._refresh(self.query_one(OptionList).highlighted or 0)
        back = key_name(key_of("undelete", self._keymap))
        self._say(f"{as_sentence(f'Deleted: {one_line(title, 50)}')} {back} brings it back.")

    def action_undelete(self) -> None:
        gone = self._store.last_deleted()
        if gone is None:
            self._say("There is none to bring back.")
            return
        self._store.restore(gone.id)
        self._refresh()
        self._say(as_sentence(f"Back again: {one_line(_name(gone), 50)}"))


def _name(conversation: Conversation) -> str:
    """Its title; of one in which nothing was sent yet, what its box holds."""
    if conversation.leaf is None and conversation.unsent and conversation.title_origin == "auto":
        return f"(unsent) {conversation.unsent[:_NAME]}"
    return conversation.title


def _line(conversation: Conversation, now: datetime, current: bool) -> Content:
    turns = "1 turn" if conversation.messages == 1 else f"{conversation.messages:,} turns"
    unsent = " · unsent text" if conversation.unsent and conversation.leaf is not None else ""
    return Content.assemble(
        ("● " if current else "  ", "$text-primary"),
        (one_line(_name(conversation), 70), "$foreground"),
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
