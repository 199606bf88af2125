"""One question before something that cannot be taken back, answered with a key or a click."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.style import Style
from textual.widgets import Static

from specchat.tui.actions import ACTIONS, Place, bindings, key_name, key_of
from specchat.tui.text import clean


class Question(ModalScreen[bool]):
    """Answers with True for yes; Esc is no."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.QUESTION)]

    def __init__(self, sentence: str, yes: str, keymap: Mapping[str, str], no: str = "Leave it") -> None:
        """`yes` and `no` say what is then done."""
        super().__init__()
        self._keymap = keymap
        self._sentence, self._labels = sentence, {"say_yes": yes, "say_no": no}

    def compose(self) -> ComposeResult:
        with Vertical(id="question"):
            yield Static(clean(self._sentence), markup=False)
            yield Static(self._answers(), id="answers")

    def _answers(self) -> Content:
        parts: list[Content] = []
        for action in ACTIONS:
            if action.place is Place.QUESTION:
                click = Style.from_meta({"@click": f"screen.{action.name}"})
                key = key_name(key_of(action.name, self._keymap))
                parts.append(Content.styled(f" {key} ", Style.parse("$text-accent bold") + click))
                parts.append(Content.styled(f"{self._labels[action.name]}   ", click))
        return Content.assemble(*parts)

    def action_say_yes(self) -> None:
        self.dismiss(True)

    def action_say_no(self) -> None:
        self.dismiss(False)
