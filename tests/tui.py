"""Driving the screen in tests: an application on a scripted client, its picture as text, and waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from textual import events
from textual.pilot import Pilot

from specchat.history import Conversation, Store
from specchat.session import Session
from specchat.tui.app import SpecchatApp
from specchat.tui.model_commands import Opener
from specchat.tui.screens.chat import ChatScreen
from tests.scripted_client import ScriptedClient, session

# Each part of it has crashed a Textual widget or lied to a terminal: markup, an unclosed tag, an escape sequence,
# a title-setting sequence, C1, a bidirectional override, and separators at which Python alone ends a line.
HOSTILE: Final = (
    "# [/mnt/data/models] [b + [red]x \x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b2J <think> List<int> a\u2028b\x0bc "
    "[@click=app.quit]go[/] \x00 ]8;; ${x} $primary"
)


async def eventually(pilot: Pilot[Any], holds: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait until `holds()` is true; fail with the picture of the screen if it does not become so in time."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not holds():
        if loop.time() > end:
            raise AssertionError("it did not come about; the screen:\n" + picture(pilot.app))
        await pilot.pause(0.02)


def picture(app: Any) -> str:
    """What the screen shows, as text."""
    lines = app.screen._compositor.render_strips(app.size)
    return "\n".join(line.text.rstrip() for line in lines)


class Chat:
    """The application under test with the handles that tests need."""

    def __init__(self, app: SpecchatApp, pilot: Pilot[None], session: Session, client: ScriptedClient) -> None:
        self.app, self.pilot, self.session, self.client = app, pilot, session, client

    @property
    def screen(self) -> ChatScreen:
        """The chat screen, also while another lies on top of it."""
        screen = self.app.screen_stack[0]
        assert isinstance(screen, ChatScreen)
        return screen

    @property
    def box(self) -> Any:
        """The prompt box."""
        return self.screen.query_one("#prompt")

    @property
    def text(self) -> str:
        """The picture of the screen."""
        return picture(self.app)

    @property
    def status(self) -> str:
        """The status line."""
        return str(self.screen.query_one("#status").render())

    @property
    def note(self) -> str:
        """What is said above the box; "" if nothing is."""
        return str(self.screen.query_one("#note").render())

    @property
    def idle(self) -> bool:
        """No stream is running."""
        return not self.screen.busy

    async def until(self, holds: Callable[[], object], seconds: float = 20.0) -> None:
        """Wait for something."""
        await eventually(self.pilot, holds, seconds)

    async def shows(self, *parts: str) -> None:
        """Wait until the screen shows every one of `parts`."""
        await self.until(lambda: all(part in self.text for part in parts))

    async def type(self, text: str) -> None:
        """Put `text` in the box at the cursor, as a paste."""
        self.box.focus()
        self.box.post_message(events.Paste(text))
        await self.pilot.pause()

    async def say(self, text: str, wait: bool = True) -> None:
        """Type `text`, press Enter, and wait for the reply's end."""
        await self.type(text)
        await self.pilot.press("enter")
        await self.handled()
        if wait:
            await self.until(lambda: self.idle)

    async def handled(self) -> None:
        """Wait until what was typed has gone its whole way.

        Pilot.pause waits until every widget has dealt with what it has now, not with what comes of that: the key goes
        to the box, which sends itself a message that goes to the dock, which sends itself another that goes up.
        """
        for widget in (self.app, self.box, self.box, self.screen.dock, self.screen.dock, self.screen):
            dealt_with = asyncio.Event()
            if widget.call_later(dealt_with.set):  # not while the application closes
                await asyncio.wait_for(dealt_with.wait(), 30)
        await self.pilot.pause()


@asynccontextmanager
async def chatting(
    client: ScriptedClient | None = None,
    size: tuple[int, int] = (100, 30),
    *,
    theme: str = "textual-dark",
    keymap: dict[str, str] | None = None,
    loaded: bool = True,
    store: Store | None = None,
    resume: Conversation | None = None,
    opener: Opener | None = None,
    warning: str = "",
    **launch: Any,
) -> AsyncIterator[Chat]:
    """A running application; `loaded` waits until the scripted models are."""
    client = client or ScriptedClient()
    conversation = session(client, **launch)
    app = SpecchatApp(conversation, theme, keymap, store, resume, opener=opener, warning=warning)
    async with app.run_test(size=size, notifications=True) as pilot:
        chat = Chat(app, pilot, conversation, client)
        if loaded:
            await chat.until(lambda: chat.idle)
        try:
            yield chat
        finally:
            client.cancelled.set()  # no script may wait for a test that is over
