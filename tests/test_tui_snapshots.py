"""What the screen looks like, letter by letter, and that themes change its colours alone.

`SPECCHAT_UPDATE_SNAPSHOTS=1` writes tests/snapshots anew; look at the difference before committing it.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.scripted_client import ScriptedClient, words
from tests.tui import Chat, chatting

FOLDER = Path(__file__).parent / "snapshots"
SIZES = [(200, 50), (100, 30), (80, 24)]
REPLY = """# Speculative decoding

A small **draft** model *proposes*, the target `verifies`.

1. propose
2. verify

```python
print("List<int>")
```

| depth | tokens per pass |
|---|---|
| 4 | 2.8 |
"""


async def empty(chat: Chat) -> None:
    await chat.shows("demo pair")


async def reply(chat: Chat) -> None:
    await chat.say("How does it work?")
    await chat.shows("tokens per pass")


async def asking_for_help(chat: Chat) -> None:
    await chat.pilot.press("f1")
    await chat.shows("Keys and commands")


async def typing_a_command(chat: Chat) -> None:
    await chat.pilot.press("slash", "s")
    await chat.shows("/system")


async def in_the_conversation(chat: Chat) -> None:
    await reply(chat)
    await chat.pilot.press("tab", "p", "p")
    await chat.shows("y Copy")


async def after_a_race(chat: Chat) -> None:
    await chat.say("/race How does it work?", wait=False)
    await chat.shows("as fast as plain")


STATES: list[Callable[[Chat], Awaitable[None]]] = [
    empty,
    reply,
    asking_for_help,
    typing_a_command,
    in_the_conversation,
    after_a_race,
]


async def _picture(state: Callable[[Chat], Awaitable[None]], size: tuple[int, int], theme: str, expected: str) -> str:
    """What the screen shows once it is complete: as expected, or else after a while that is long enough."""
    async with chatting(ScriptedClient(words(REPLY)), size=size, theme=theme) as chat:
        await state(chat)
        with suppress(AssertionError):
            await chat.until(lambda: chat.text + "\n" == expected)
        return chat.text + "\n"


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
async def test_the_screen_is_as_it_was_looked_at(
    state: Callable[[Chat], Awaitable[None]], size: tuple[int, int]
) -> None:
    file = FOLDER / f"{state.__name__}-{size[0]}x{size[1]}.txt"
    if os.environ.get("SPECCHAT_UPDATE_SNAPSHOTS"):
        file.write_text(await _picture(state, size, "textual-dark", ""), "utf-8")
    looked_at = file.read_text("utf-8")
    for theme in ("textual-dark", "textual-light"):
        assert await _picture(state, size, theme, looked_at) == looked_at
