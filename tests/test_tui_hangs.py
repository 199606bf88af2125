"""An engine that hangs: it is said, and ends by the key that should have stopped it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from specchat import locations
from specchat.history import Store
from specchat.session import Launch, Session
from specchat.tui import stopping
from specchat.tui.app import SpecchatApp
from specchat.tui.screens.chat import ChatScreen
from specchat.tui.screens.race import RaceScreen
from specchat.worker.client import Client
from tests import scripted_engine
from tests.scripted_client import ScriptedClient, hanging, until, words
from tests.tui import Chat, chatting, eventually, picture

DEAF = "The engine does not answer"
KILLED = "You ended the engine, which did not answer. The next message starts another."


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "PATIENCE", 0.3)


async def deaf(chat: Chat, *keys: str) -> None:
    """Ask a reply to stop, and wait until it is said that it does not."""
    await chat.pilot.press(*keys)
    await chat.shows(DEAF, "End the engine")


@pytest.mark.parametrize("key", ["escape", "ctrl+c"])
async def test_a_second_press_ends_the_engine_and_the_next_message_starts_another(key: str, tmp_path: Path) -> None:
    client = ScriptedClient(script=hanging("what came "))
    async with chatting(client, store=Store(tmp_path / "h.db")) as chat:
        await chat.say("hello", wait=False)
        await chat.shows("what came")
        await deaf(chat, key)
        assert not client.killed.is_set()
        await chat.pilot.press(key)
        await chat.until(lambda: chat.idle)
        await chat.shows("what came", KILLED)
        assert "crash" not in chat.text.lower()
        assert DEAF not in chat.text
        assert [turn.content for turn in chat.session.messages] == ["hello", "what came "]
        client.script = words("here again")
        await chat.say("still there?")
        await chat.shows("here again")
        assert client.loads == 2
        journal = chat.screen.journal
        assert journal.leaf is not None
        assert [m.state for m in journal.store.path(journal.leaf)][1::2] == ["stopped", "complete"]


async def test_a_question_without_any_answer_comes_back_to_the_box() -> None:
    async with chatting(ScriptedClient(script=hanging(""))) as chat:
        await chat.say("hello", wait=False)
        await deaf(chat, "escape")
        await chat.pilot.press("escape")
        await chat.shows(KILLED)
        assert chat.box.text == "hello"


async def test_keys_pressed_before_it_is_known_to_hang_end_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "PATIENCE", 60.0)
    client = ScriptedClient(script=hanging("what came "))
    async with chatting(client) as chat:
        await chat.say("hello", wait=False)
        await chat.shows("what came")
        await chat.pilot.press("escape", "escape", "ctrl+c")
        await chat.shows("Stopping…")
        assert not client.killed.is_set()
        assert DEAF not in chat.text
        client.killed.set()


async def test_an_engine_that_stops_in_time_is_not_called_deaf() -> None:
    client = ScriptedClient(script=until(threading.Event(), "what came ", ""))
    async with chatting(client) as chat:
        await chat.say("hello", wait=False)
        await chat.shows("what came")
        await chat.pilot.press("escape")
        await chat.until(lambda: chat.idle)
        await asyncio.sleep(0.5)
        await chat.pilot.pause()
        assert DEAF not in chat.text
        assert "Stopping" not in chat.text


async def test_what_waits_for_the_reply_to_stop_is_done_once_the_engine_is_ended(tmp_path: Path) -> None:
    client = ScriptedClient(script=hanging("what came "))
    async with chatting(client, store=Store(tmp_path / "h.db")) as chat:
        await chat.say("hello", wait=False)
        await chat.shows("what came")
        await chat.say("/edit", wait=False)
        await chat.until(lambda: chat.screen.editing is not None)
        chat.box.replace_all("hello again")
        await chat.pilot.press("enter")
        await chat.shows(DEAF)
        client.script = words("a whole reply")
        await chat.pilot.press("escape")
        await chat.shows("hello again", "a whole reply")


async def test_a_message_that_waits_is_sent_to_the_engine_that_comes_after_it() -> None:
    client = ScriptedClient(script=hanging("what came "))
    async with chatting(client) as chat:
        await chat.say("hello", wait=False)
        await chat.shows("what came")
        await chat.say("next one", wait=False)
        await deaf(chat, "escape")
        client.script = words("a whole reply")
        await chat.pilot.press("escape")
        await chat.shows(KILLED, "next one", "a whole reply")


async def test_a_race_ends_the_same_way() -> None:
    client = ScriptedClient(script=hanging("what came "))
    async with chatting(client, size=(100, 30)) as chat:
        await chat.say("/race Say something.", wait=False)
        await chat.until(lambda: isinstance(chat.app.screen, RaceScreen))
        await chat.shows("what came")
        await chat.pilot.press("escape")
        await chat.shows(DEAF, "End the engine")
        await chat.pilot.press("escape")
        await chat.shows("You ended the engine")
        await chat.pilot.press("escape")
        await chat.until(lambda: isinstance(chat.app.screen, ChatScreen))


async def test_counting_tokens_does_not_wait_for_an_engine_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    def count(_: ScriptedClient, text: str) -> int:
        gate.wait(20)
        return len(text.split())

    monkeypatch.setattr(ScriptedClient, "count", count)
    async with chatting() as chat:
        await chat.say("/tokens one two three", wait=False)
        await chat.type("typed meanwhile")
        await chat.shows("typed meanwhile")
        gate.set()
        await chat.shows("3 tokens.")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Client]:
    """A real process with a scripted engine."""
    monkeypatch.setenv(locations.HOME_VARIABLE, str(tmp_path))
    scripted_engine.use(monkeypatch)
    made = Client()
    yield made
    made.close()


async def test_models_that_are_being_loaded_can_be_called_off(client: Client) -> None:
    app = SpecchatApp(Session(Launch("scripted", Path("slow.gguf")), client))
    async with app.run_test(size=(100, 30)) as pilot:
        screen = app.screen
        assert isinstance(screen, ChatScreen)
        await eventually(pilot, lambda: "loading" in picture(app))
        await pilot.press("escape")
        await eventually(pilot, lambda: "/unload ends that" in picture(app))
        await pilot.press(*"/unload", "enter")
        await eventually(pilot, lambda: not screen.busy)
        assert client.pid is None
        assert "The models are unloaded" in picture(app)
        assert "closed" not in picture(app)
        await screen._send("hello there")
        await eventually(pilot, lambda: not screen.busy and "hello there" in picture(app))


async def test_a_real_process_that_hangs_is_ended_and_quitting_does_not_wait_for_it(client: Client) -> None:
    app = SpecchatApp(Session(Launch("scripted", Path("target.gguf")), client))
    async with app.run_test(size=(100, 30)) as pilot:
        screen = app.screen
        assert isinstance(screen, ChatScreen)
        await eventually(pilot, lambda: not screen.busy)
        for script in ("!die=SIGSTOP", "!hang=60"):
            await screen._send(f"one two three four {script} five")
            # Not on the screen: the question says the same.
            await eventually(pilot, lambda: (now := screen.play.now) and "four" in now.reply.text)
            await pilot.press("escape")
            await eventually(pilot, lambda: DEAF in picture(app))
            await pilot.press("escape")
            await eventually(pilot, lambda: not screen.busy)
            assert client.pid is None
        await screen._send("whole again")
        await eventually(pilot, lambda: not screen.busy and "whole again" in picture(app))
        await screen._send("!die=SIGSTOP")
        screen.run_worker(asyncio.to_thread(screen.session.count_tokens, "one two"), exit_on_error=False)
        await pilot.pause(0.2)
        await pilot.press("ctrl+q")
    assert client.pid is None
