"""The lower edge: what is said about the box, completions, the box itself, the status line, the hints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList, TextArea

from specchat.pairs.catalog import Pair
from specchat.tui import origins
from specchat.tui.completion import candidates
from specchat.tui.recall import Recall
from specchat.tui.screens.models import installed
from specchat.tui.text import first_clauses, one_line
from specchat.tui.told import Told
from specchat.tui.widgets.completions import Completions
from specchat.tui.widgets.downloads import Downloads
from specchat.tui.widgets.hints import Hints
from specchat.tui.widgets.note import Note
from specchat.tui.widgets.prompt import PromptBox
from specchat.tui.widgets.status import StatusLine

_CORNERS: Final = 4  # columns of the box's edge that hold no text


class Dock(Told, Vertical):
    """Everything about writing a message; what becomes of it is the screen's business."""

    @dataclass
    class Said(Message):
        """Enter was pressed on a text that is not empty. The box no longer holds it."""

        text: str

    @dataclass
    class Changed(Message):
        """The box holds another text."""

        text: str

    def __init__(self, keymap: Mapping[str, str]) -> None:
        super().__init__(id="dock")
        self._queued: Final = Note("queued")
        self._note: Final = Note("note")
        self._completions: Final = Completions()
        self.box: Final = PromptBox(keymap)
        self.status: Final = StatusLine(id="status")
        self.hints: Final = Hints(id="hints")
        self.recall = Recall()
        self.queued = ""
        self._pairs: tuple[Pair, ...] | None = None
        self._reason = self._refused = self._about = ""
        self._aside: str | None = None  # what the box held before an earlier message was opened in it
        self._opened = ""  # that message, as the box held it then

    def compose(self) -> ComposeResult:
        yield Downloads()
        yield self._queued
        yield self._note
        yield self._completions
        yield self.box
        yield self.status
        yield self.hints

    # ---- what is said

    def note(self, sentence: str, severity: str = "information", about: str = "") -> None:
        """Say something in place, above the box; `about` names what it holds for, until `hush` is told that."""
        self._about = about
        self._note.say(sentence, severity)

    def legend(self) -> None:
        """Say what the colours of origins mean."""
        self._about = ""
        self._note.explain(origins.legend())

    def hush(self, about: str = "") -> None:
        """Say nothing more, or no more what was said `about` something that is no longer as it was."""
        if about in ("", self._about):
            self._note.hush()

    def explain(self, reason: str) -> None:
        """Say on the box's lower edge why the mode is what it is; "" for nothing."""
        self._reason = reason
        shown = first_clauses(reason, self.box.size.width - _CORNERS)
        self.box.border_subtitle = Content.styled(shown, "$foreground 60%") if shown else None

    def on_resize(self) -> None:
        self.call_after_refresh(self.explain, self._reason)

    # ---- the message

    @property
    def text(self) -> str:
        """What the box holds, with what was pasted."""
        return self.box.whole

    @property
    def kept(self) -> str:
        """What is not sent yet, as it is kept on disk: the message that waits, what is set aside, and the box."""
        return "\n\n".join(filter(None, (self.box.as_kept(self.queued), self._aside, self._written)))

    @property
    def _written(self) -> str:
        """What the box holds that is nowhere else: an earlier message that was opened and not changed is."""
        kept = self.box.kept
        return "" if self._aside is not None and kept == self._opened else kept

    def empty(self) -> None:
        """Nothing in the box (which can be undone)."""
        self.box.replace_all("")

    def open_earlier(self, text: str, about: str) -> None:
        """Have an earlier message edited in the box, whose upper edge says so; what it holds is set aside."""
        if self._aside is None:
            self._aside = self.box.kept
        self.box.border_title = Content.styled(about, "$text-warning")
        self.box.replace_all(text)
        self._opened = self.box.kept
        self.box.focus()

    def close_earlier(self) -> None:
        """The box is for new messages again: what was set aside comes back, before what it holds now."""
        held = "\n\n".join(filter(None, (self._aside, self._written)))
        self._aside = self.box.border_title = None
        if held != self.box.kept:
            self.box.restore(held)

    def give_back(self, text: str) -> None:
        """Put a message that was not sent in front of what the box holds."""
        if text.strip() != self.text.strip():
            self.box.replace_all("\n\n".join(filter(None, (text, self.text))))

    def refuse(self, text: str, sentence: str) -> None:
        """Nothing is done with what was typed: it goes back to the box, and `sentence` stands until it is changed."""
        self.give_back(text)
        self._refused = self.text
        self.note(sentence, "error")

    def queue(self, text: str, after: str = "") -> None:
        """Keep `text` to be sent next, and show it; `after` says for what it waits, where that is not to be seen."""
        self.queued = text
        if text:
            self._queued.say(f"Next{after}: {one_line(text)}")
        else:
            self._queued.hush()

    def take_queued(self) -> str:
        """The message that was waiting, which then no longer is."""
        text = self.queued
        self.queue("")
        return text

    # ---- the box's messages

    @on(PromptBox.Submitted)
    def _submitted(self, event: PromptBox.Submitted) -> None:
        event.stop()
        text = event.text.strip()
        if not text or (self.text.strip() == text and self.take_completion(text)):
            return
        if self.text == event.text:  # a command that was complete as it stood
            self.empty()
        self.post_message(self.Said(text))

    @on(TextArea.Changed, "#prompt")
    def _changed(self, event: TextArea.Changed) -> None:
        event.stop()
        text = self.text
        if text not in ("", self._refused):  # what is said about a text that was sent or refused stays
            self._refused = ""
            self.hush()
        if not text.startswith("/"):
            self._pairs = None  # looked for anew with the next command: one may have been pulled meanwhile
        offers = candidates(text, self._installed) if self.box.cursor_at_end_of_text else ()
        self._completions.offer(offers)
        self.box.completing = bool(offers)
        self.post_message(self.Changed(text))

    def _installed(self) -> tuple[Pair, ...]:
        """The pairs that can be loaded, read once for a command: the catalogue takes longer than a key may."""
        if self._pairs is None:
            self._pairs = installed()
        return self._pairs

    def close_completions(self) -> bool:
        """Close the list of completions; False if it was not open."""
        if not self.box.completing:
            return False
        self._completions.offer(())
        self.box.completing = False
        return True

    def take_completion(self, text: str = "") -> bool:
        """Put the highlighted completion in the box; False if there is none or `text` is it already."""
        chosen = self._completions.chosen
        if chosen is None or chosen.text.strip() == text:
            return False
        self.box.replace_all(chosen.text)
        return True

    @on(OptionList.OptionSelected, "#completions")
    def _completion_clicked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.take_completion()

    @on(PromptBox.Stepped)
    def _step(self, event: PromptBox.Stepped) -> None:
        event.stop()
        if self.box.completing:
            self._completions.move(event.by)
        elif self.queued and event.by < 0 and not self.text:
            self.box.replace_all(self.take_queued())
        elif (earlier := self.recall.step(event.by, self.text)) is not None:
            self.box.replace_all(earlier)
