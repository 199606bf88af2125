"""The Textual application around the chat.

Contract: `run` owns the session it is given: when it returns the terminal is as it was and the engine's process has
ended, however the application ended (a key, an error, SIGTERM, SIGHUP). It needs a terminal on standard input and
output; who calls it checks that first.
"""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Final, cast

from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual.actions import ActionParseResult
from textual.app import App, SystemCommand
from textual.binding import BindingType
from textual.dom import DOMNode
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.keys import Keys
from textual.screen import Screen

from specchat import locations
from specchat.errors import SpecchatError
from specchat.history import KEEP_DELETED, Conversation, Store
from specchat.session import Session
from specchat.tui.actions import ACTIONS, COMMANDS, Place, bindings, key_name, keys_of
from specchat.tui.driver import TerminalDriver
from specchat.tui.model_commands import Opener
from specchat.tui.screens.chat import ChatScreen
from specchat.tui.screens.conversations import ConversationsScreen
from specchat.tui.text import as_sentence, clean, one_line
from specchat.tui.told import Told
from specchat.tui.widgets.dock import Dock

_DEFAULT_THEME: Final = "textual-dark"


class SpecchatApp(Told, App[None]):
    """One window of specchat."""

    TITLE = "specchat"
    CSS_PATH = "specchat.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.APP)]

    def __init__(
        self,
        session: Session,
        theme: str = _DEFAULT_THEME,
        keymap: Mapping[str, str] | None = None,
        store: Store | None = None,
        resume: Conversation | None = None,
        choose: bool = False,
        opener: Opener | None = None,
        warning: str = "",
    ) -> None:
        super().__init__()
        self._session = session
        self._choose = choose
        self._opener, self._warning = opener, warning
        self._store = store or Store(None)
        self._resume = resume
        self._chat: ChatScreen | None = None
        self._keys = dict(keymap or {})
        self.set_keymap(self._keys)
        self._first_theme = theme if theme in self.available_themes else _DEFAULT_THEME
        self.theme = self._first_theme

    def on_mount(self) -> None:
        # Alt+Enter in terminals without the newer keyboard protocol: Textual makes it Esc and Enter, which would stop
        # a reply and send the message. A line feed (Ctrl+J) is what it stands for.
        cast("dict[str, object]", ANSI_SEQUENCES_KEYS)["\x1b\r"] = (Keys.ControlJ,)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            # Outside the main thread (some test runners) there are no handlers to set.
            with suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, self._end_by_signal, number)

    def on_app_focus(self) -> None:
        """Whoever comes from another window sees what was done there."""
        for screen in self.screen_stack:
            if isinstance(screen, ChatScreen | ConversationsScreen):
                screen.call_later(screen.look)

    def get_driver_class(self) -> type[Driver]:
        usual = super().get_driver_class()
        return TerminalDriver if usual is LinuxDriver else usual

    def get_default_screen(self) -> ChatScreen:
        self._chat = ChatScreen(
            self._session, self._store, self._keys, self._resume, self._choose, self._opener, self._warning
        )
        return self._chat

    # ---- settings of the screen

    def use_theme(self, name: str | None) -> None:
        """Change the colours; None: to those that the chat began with. Raises SpecchatError."""
        name = name or self._first_theme
        if name not in self.available_themes:
            known = ", ".join(sorted(self.available_themes))
            raise SpecchatError(f"There is no theme {one_line(name, 40)}; there are {known}.")
        self.theme = name

    @property
    def has_mouse(self) -> bool:
        """Whether the mouse is reported to specchat instead of being the terminal's own."""
        return isinstance(self._driver, TerminalDriver) and self._driver.has_mouse

    def grab_mouse(self, on: bool | None) -> None:
        """Have the mouse reported from now on, or not; None: as when the chat began. Raises SpecchatError."""
        if not isinstance(self._driver, TerminalDriver):
            raise SpecchatError("The mouse of this terminal cannot be let go.")
        self._driver.grab_mouse(on)

    def farewell(self) -> str:
        """What to print once the screen is gone: the conversation's title, and how to come back to it."""
        conversation = self._chat.journal.conversation if self._chat else None
        if conversation is None or self._store.file is None:
            return ""
        try:
            kept = self._store.conversation(conversation.id)
        except SpecchatError as error:
            return clean(f"specchat: {error}")
        return f"{clean(kept.title)}\nspecchat --resume {kept.id}" if kept.messages and not kept.deleted else ""

    async def run_action(
        self,
        action: str | ActionParseResult,
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        """As Textual's; an action that fails with one of our own errors says so and ends nothing."""
        try:
            return await super().run_action(action, default_namespace, namespaces)
        except SpecchatError as error:
            self.tell(error)
            return True

    def _handle_exception(self, error: Exception) -> None:
        if isinstance(error, SpecchatError):
            self.tell(error)
        else:
            super()._handle_exception(error)

    def tell(self, error: SpecchatError) -> None:
        if isinstance(self.screen, Told):
            self.screen.tell(error)
        else:
            super().tell(error)

    async def action_quit(self) -> None:
        await self._leave(0)

    async def _leave(self, return_code: int) -> None:
        try:
            if self._chat is not None:
                await self._chat.wind_down()
        finally:  # whatever goes wrong meanwhile, whoever wants to leave can
            self.exit(return_code=return_code)

    def _end_by_signal(self, number: int) -> None:
        self.run_worker(self._leave(128 + number), exit_on_error=False)

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        for action in ACTIONS:
            if action.palette and isinstance(screen, ChatScreen):
                key = key_name(keys_of(action, self._keys)[0])
                help_text = f"{action.help} ({key})"
                yield SystemCommand(action.label, help_text, partial(screen.run_action, action.name))
        if isinstance(screen, ChatScreen):
            for command in COMMANDS:  # each does something without an argument
                typed = partial(screen.dock.post_message, Dock.Said(f"/{command.name}"))
                yield SystemCommand(command.usage, command.help, typed)
        yield SystemCommand("Theme", "Change the colours.", self.action_change_theme)
        yield SystemCommand("Screenshot", "Save a picture of the screen (SVG).", self.deliver_screenshot)
        yield SystemCommand("Quit", "Quit specchat.", self.action_quit)


def run(
    session: Session,
    theme: str = _DEFAULT_THEME,
    keymap: Mapping[str, str] | None = None,
    mouse: bool = True,
    store: Store | None = None,
    resume: Conversation | None = None,
    choose: bool = False,
    opener: Opener | None = None,
    warning: str = "",
) -> int:
    """Chat until the user leaves; answers with the exit status.

    `store` keeps the conversations (None: in memory only), `resume` is the one to begin with; `choose` begins with the
    list of them. `opener` finds other models by a name (see `specchat.commands.opening.instead`). `warning` is shown
    before anything else. On leaving, the conversation's title and the command that resumes it are printed.
    """
    kept = store or Store(None)
    app = SpecchatApp(session, theme, keymap, kept, resume, choose, opener, warning)
    gc.freeze()  # looking through what the imports left behind held up a streaming reply for 40 ms every few seconds
    try:
        app.run(mouse=mouse)
        farewell = app.farewell()
    finally:
        session.close()
        with suppress(SpecchatError):
            kept.purge(keep_unused=KEEP_DELETED)  # another window may show one that is empty yet
        kept.close()
    status = app.return_code or 0
    if farewell and status != 128 + signal.SIGHUP:  # else nobody is there to read it
        print(farewell)
    return status


def open_store() -> tuple[Store, str]:
    """The user's conversations; in memory, and why they will not be saved, where the file cannot be used."""
    try:
        return Store(locations.history_file()), ""
    except SpecchatError as error:
        return Store(None), f"{as_sentence(error)} Conversations will not be saved."
