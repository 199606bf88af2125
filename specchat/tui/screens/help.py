"""Every key and every command, from the registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from specchat.tui.actions import ACTIONS, COMMANDS, Place, key_name, keys_of

_NARROW: Final = 70  # columns below which keys and what they do stand under one another


class HelpScreen(ModalScreen[None]):
    """Closed by the key that opened it, or Esc."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss", "Close"),
        Binding("f1", "dismiss", "Close", id="help"),
    ]

    def __init__(self, keymap: Mapping[str, str]) -> None:
        super().__init__()
        self._keymap = keymap

    def on_mount(self) -> None:
        self._fit()

    def on_resize(self) -> None:
        self._fit()

    def _fit(self) -> None:
        # Textual's own breakpoints are looked at when the terminal is resized, not when a screen is pushed.
        self.set_class(self.app.size.width < _NARROW, "-narrow")

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help") as box:
            box.border_title = Content("Keys and commands")
            box.border_subtitle = Content("Esc closes")
            for place in (
                Place.PROMPT,
                Place.SCREEN,
                Place.CONVERSATION,
                Place.LIST,
                Place.RACE,
                Place.PAIRS,
                Place.QUESTION,
                Place.APP,
            ):
                yield Static(Content.styled(place.value.capitalize(), "bold $text-primary"), classes="heading")
                for action in ACTIONS:
                    if action.place is place:
                        keys = "  ".join(key_name(key) for key in keys_of(action, self._keymap))
                        yield _row(keys, action.help)
            yield Static(Content.styled("Commands", "bold $text-primary"), classes="heading")
            for command in COMMANDS:
                yield _row(command.usage, command.help)


def _row(left: str, right: str) -> Horizontal:
    return Horizontal(Static(left, markup=False, classes="keys"), Static(right, markup=False))
