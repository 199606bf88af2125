"""A day at the screen: a thousand turns, after which memory, widgets and the cost of a key are what they were."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import psutil

from specchat.history import Store
from tests.scripted_client import ScriptedClient, words
from tests.tui import Chat, chatting

TURNS = 1000
WARM = 200  # turns after which everything that is cached is
GROWTH = 48 << 20  # bytes: the text of the turns, and what the allocator keeps
REPLY = "# A reply\n\nwith **some** text.\n\n- one\n- two\n\n```python\nprint(1)\n```"


async def _key_seconds(chat: Chat) -> float:
    """Processor time of one key, the median of many: waiting, and what else runs here, does not count."""
    times = []
    for _ in range(40):
        before = time.process_time()
        await chat.pilot.press("x")
        times.append(time.process_time() - before)
    chat.box.clear()
    await chat.pilot.pause()
    return statistics.median(times)


async def test_a_thousand_turns_cost_no_more_than_two_hundred(tmp_path: Path) -> None:
    process = psutil.Process()
    async with chatting(ScriptedClient(words(REPLY)), store=Store(tmp_path / "history.db")) as chat:
        for number in range(TURNS):
            await chat.say(f"turn {number}")
            if number == WARM:
                memory, key = process.memory_info().rss, await _key_seconds(chat)
                widgets = len(chat.screen.query("*"))
        assert len(chat.session.messages) == 2 * TURNS
        assert len(chat.screen.query("*")) <= widgets + 60
        assert process.memory_info().rss - memory < GROWTH
        assert await _key_seconds(chat) < 2 * key
