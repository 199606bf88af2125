"""A history that fails under the chat: it is said, ends nothing, and loses nothing on the screen."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TypeAlias

import pytest

from specchat.engine.replies import Event, Finished, Message
from specchat.errors import SpecchatError
from specchat.history import Store
from specchat.tui.app import SpecchatApp
from tests.scripted_client import ScriptedClient, generated, session, until, words
from tests.tui import Chat, chatting

Trouble: TypeAlias = Callable[[Path, Store, ExitStack], None]
Doing: TypeAlias = Callable[[Chat], Awaitable[None]]

WIDE = (250, 40)  # every sentence on one line, however long the path of the file is


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


# ---- what happens to the file


def vanish(file: Path, _: Store, __: ExitStack) -> None:
    file.unlink()


def damage(file: Path, store: Store, _: ExitStack) -> None:
    with closing(sqlite3.connect(file)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    size = file.stat().st_size
    with file.open("r+b") as raw:
        raw.seek(100)  # the header stays
        raw.write(b"\xff" * (size - 100))
    store._db.execute("PRAGMA shrink_memory")  # what it remembers would hide it for a while


def lock(file: Path, _: Store, until_the_end: ExitStack) -> None:
    rude = until_the_end.enter_context(closing(sqlite3.connect(file, isolation_level=None)))
    rude.execute("BEGIN IMMEDIATE")


TROUBLES: tuple[Trouble, ...] = (vanish, damage, lock)
SAID: dict[Trouble, str] = {vanish: "was moved or deleted", damage: "is damaged", lock: "locked"}


# ---- what is being done meanwhile


async def focus(chat: Chat) -> None:
    chat.screen.set_focus(chat.screen.transcript)
    await chat.pilot.pause()


async def press(chat: Chat, *keys: str) -> None:
    await chat.pilot.press(*keys)
    await chat.pilot.pause()


async def leave_the_list(chat: Chat) -> None:
    if len(chat.app.screen_stack) > 1:
        await press(chat, "escape")


async def ask(chat: Chat) -> None:
    await chat.say("more")


async def ask_again(chat: Chat) -> None:
    await focus(chat)
    await press(chat, "r")


async def edit(chat: Chat) -> None:
    await focus(chat)
    await press(chat, "e")
    chat.box.replace_all("another question")
    await press(chat, "enter")
    await chat.handled()


async def look_at_another_version(chat: Chat) -> None:
    await focus(chat)
    await press(chat, "h")


async def open_another(chat: Chat) -> None:
    await press(chat, "ctrl+r")
    await press(chat, "down", "enter")
    await leave_the_list(chat)


async def search(chat: Chat) -> None:
    await press(chat, "ctrl+r")
    await press(chat, "o", "n", "e")
    await press(chat, "f2", "escape", "ctrl+x", "ctrl+z", "ctrl+t", "enter")
    await leave_the_list(chat)


async def begin_anew(chat: Chat) -> None:
    await chat.type("unsent")
    await press(chat, "ctrl+n")


DOINGS: tuple[Doing, ...] = (
    ask,
    ask_again,
    edit,
    look_at_another_version,
    open_another,
    search,
    begin_anew,
)


def numbered(client: ScriptedClient, messages: Sequence[Message]) -> Iterator[Event]:
    yield from words(f"Reply to {messages[-1].content}.")(client, messages)


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("doing", DOINGS)
async def test_nothing_ends_and_the_next_message_is_answered(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: Trouble, doing: Doing
) -> None:
    monkeypatch.setattr("specchat.history.database.BUSY_TIMEOUT", 0.05)
    monkeypatch.chdir(tmp_path)
    store = Store(file)
    with ExitStack() as until_the_end:
        async with chatting(ScriptedClient(numbered), WIDE, store=store) as chat:
            await chat.say("one")
            await press(chat, "ctrl+n")
            await chat.say("two")
            await chat.say("/regen")
            await chat.shows("version 2 of 2")
            trouble(file, store, until_the_end)
            await doing(chat)
            await chat.until(lambda: chat.idle)
            if trouble is not lock or doing in (ask, ask_again, edit):
                await chat.shows(SAID[trouble])
            assert len(chat.app.screen_stack) == 1
            said = [(m.role, m.content) for m in chat.session.messages]
            shown = [(t.shown.role, t.shown.text) for t in chat.screen.transcript.turns]
            assert said == shown
            chat.box.replace_all("")
            await chat.say("the last")
            await chat.shows("Reply to the last.")
            assert chat.app.return_value is None
            assert chat.app.is_running


@pytest.mark.parametrize("trouble", [vanish, damage])
@pytest.mark.parametrize("command", ["/title x", "/export", "/race", "/regen"])
async def test_a_command_that_fails_says_so_and_stays_in_the_box(file: Path, trouble: Trouble, command: str) -> None:
    store = Store(file)
    async with chatting(ScriptedClient(numbered), WIDE, store=store) as chat:
        await chat.say("one")
        trouble(file, store, ExitStack())
        await chat.say(command)
        await chat.shows(SAID[trouble])
        assert chat.box.text == ("" if command == "/regen" else command)
        assert len(chat.session.messages) == 2


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("back", [False, True])
async def test_a_reply_that_ends_elsewhere_ends_quietly_and_what_waits_is_sent(
    file: Path, monkeypatch: pytest.MonkeyPatch, trouble: Trouble, back: bool
) -> None:
    monkeypatch.setattr("specchat.history.database.BUSY_TIMEOUT", 0.05)
    gate, store = threading.Event(), Store(file)
    with ExitStack() as until_the_end:
        async with chatting(ScriptedClient(until(gate, "begun ", "and done")), WIDE, store=store) as chat:
            await chat.say("old", wait=False)
            await chat.shows("begun")
            old = chat.screen.journal.conversation
            assert old is not None
            await press(chat, "ctrl+n")
            await chat.say("new", wait=False)
            await chat.shows("Next, after the reply in another conversation: new")
            trouble(file, store, until_the_end)
            if back:
                await press(chat, "ctrl+r")
                await press(chat, "enter")
                await leave_the_list(chat)
            chat.client.script = words("Fresh.")
            gate.set()
            await chat.shows("Fresh.", SAID[trouble])
            await chat.until(lambda: chat.idle)
            assert chat.session.messages[-2:] == (Message("user", "new"), Message("assistant", "Fresh."))


async def test_what_could_not_be_written_of_a_reply_is_written_once_it_can(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specchat.history.database.BUSY_TIMEOUT", 0.05)
    monkeypatch.setattr("specchat.tui.journal._INTERVAL", 0.0)
    first, second, store = threading.Event(), threading.Event(), Store(file)

    def script(client: ScriptedClient, _: Sequence[Message]) -> Iterator[Event]:
        yield generated("begun, ", client.figures(1))
        first.wait(10)
        yield generated("gone on, ", client.figures(2))
        second.wait(10)
        yield generated("and done", client.figures(3))
        yield Finished("end", client.figures(3))

    with ExitStack() as locked, Store(file) as reader:
        async with chatting(ScriptedClient(script), WIDE, store=store) as chat:
            await chat.say("one", wait=False)
            await chat.shows("begun")
            kept = reader.last()
            assert kept is not None
            lock(file, store, locked)
            first.set()
            await chat.shows("gone on", "locked")
            locked.close()
            second.set()
            await chat.until(lambda: chat.idle)
            assert reader.path(reader.conversation(kept.id).leaf)[-1].content == "begun, gone on, and done"


@pytest.mark.parametrize("trouble", [vanish, damage])
async def test_a_conversation_to_resume_that_cannot_be_read_is_said(file: Path, trouble: Trouble) -> None:
    store = Store(file)
    kept = store.create()
    store.send(kept.id, "one", after=None)
    trouble(file, store, ExitStack())
    async with chatting(ScriptedClient(numbered), WIDE, store=store, resume=kept) as chat:
        await chat.shows(SAID[trouble], "demo pair")
        await chat.say("two")
        await chat.shows("Reply to two.")


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_the_farewell_says_it(file: Path, trouble: Trouble) -> None:
    store = Store(file)
    with ExitStack() as until_the_end:
        async with chatting(ScriptedClient(numbered), WIDE, store=store) as chat:
            await chat.say("one")
            trouble(file, store, until_the_end)
            farewell = chat.app.farewell()
            assert (SAID[trouble] in farewell) is (trouble is not lock)
            assert ("specchat --resume" in farewell) is (trouble is lock)


@pytest.mark.parametrize("where", ["timer", "callback", "later", "message"])
async def test_an_error_of_ours_is_said_wherever_it_comes_up(where: str) -> None:
    async with chatting() as chat:
        times: list[int] = []

        def fails() -> None:
            times.append(1)
            raise SpecchatError("the [disk] is gone")

        def come_up() -> None:
            if where == "timer":
                chat.screen.set_timer(0.01, fails)
            elif where == "callback":
                chat.screen.call_next(fails)
            elif where == "later":
                chat.screen.call_later(fails)
            else:
                chat.screen.call_after_refresh(fails)

        for turn in range(2):
            come_up()
            await chat.until(lambda: times)
            times.clear()
            await chat.shows("The [disk] is gone")
            await chat.say(f"hello {turn}")
            assert len(chat.session.messages) == 2 * turn + 2


async def test_any_other_error_still_ends_the_chat() -> None:
    app = SpecchatApp(session(ScriptedClient()))

    async def use_it() -> None:
        async with app.run_test() as pilot:
            app.screen.call_later(lambda: 1 // 0)
            await pilot.pause(0.5)

    with pytest.raises(ZeroDivisionError):
        await use_it()


async def test_what_came_of_a_reply_is_on_disk_when_one_leaves(file: Path) -> None:
    store = Store(file)
    async with chatting(ScriptedClient(until(threading.Event(), "begun ", "never")), store=store) as chat:
        await chat.say("one", wait=False)
        await chat.shows("begun")
        await chat.screen.wind_down()
        kept = store.last()
        assert kept is not None
        reply = store.path(kept.leaf)[-1]
        assert (reply.content, reply.state) == ("begun ", "stopped")


async def test_a_reply_whose_end_could_not_be_written_is_ended_once_it_can(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specchat.history.database.BUSY_TIMEOUT", 0.05)
    gate, store = threading.Event(), Store(file)
    with ExitStack() as locked, Store(file) as reader:
        async with chatting(ScriptedClient(until(gate, "begun ", "and done")), WIDE, store=store) as chat:
            await chat.say("one", wait=False)
            await chat.shows("begun")
            lock(file, store, locked)
            gate.set()
            await chat.until(lambda: chat.idle)
            locked.close()
            chat.client.script = numbered
            await chat.say("two")
            last = reader.last()
            assert last is not None
            said = [(m.content, m.state) for m in reader.path(last.leaf)]
            texts = ("one", "begun and done", "two", "Reply to two.")
            assert said == [(text, "complete") for text in texts]


async def test_what_can_never_be_written_keeps_nothing_else_from_it(file: Path) -> None:
    gate, store = threading.Event(), Store(file)
    async with chatting(ScriptedClient(until(gate, "begun ", "and done")), WIDE, store=store) as chat:
        await chat.say("one", wait=False)
        await chat.shows("begun")
        with closing(sqlite3.connect(file)) as db, db:
            db.execute("UPDATE messages SET owner = NULL, state = 'complete'")  # as if another window had ended it
        gate.set()
        await chat.until(lambda: chat.idle)
        await chat.say("two")
        last = store.last()
        assert last is not None
        assert store.path(last.leaf)[-2].content == "two"


@pytest.mark.parametrize("then", ["say", "type", "leave", "quit"])
async def test_what_was_said_while_nothing_could_be_written_is_written_once_it_can(
    file: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    monkeypatch.setattr("specchat.history.database.BUSY_TIMEOUT", 0.05)
    store = Store(file)
    with ExitStack() as locked, Store(file) as reader:
        async with chatting(ScriptedClient(numbered), WIDE, store=store) as chat:
            await chat.say("one")
            kept = reader.last()
            assert kept is not None
            lock(file, store, locked)
            await chat.say("two")
            await chat.shows("locked", "Until that works, what is said is kept on the screen only.")
            await chat.say("three")
            assert len(reader.tree(kept.id)) == 2
            locked.close()
            if then == "say":
                await chat.say("four")
            elif then == "type":
                await chat.type("unsent")
                await chat.until(lambda: reader.conversation(kept.id).unsent)
            elif then == "leave":
                await press(chat, "ctrl+n")
            else:
                await chat.screen.wind_down()
            said = [m.content for m in reader.path(reader.conversation(kept.id).leaf)]
            expected = [text for n in ("one", "two", "three", "four") for text in (n, f"Reply to {n}.")]
            assert said == expected[: 8 if then == "say" else 6]
            assert len(reader.tree(kept.id)) == len(said)
            assert {m.state for m in reader.tree(kept.id)} == {"complete"}


def _late(keys: str, at: str) -> object:
    return pytest.param(keys.split(), at, id=keys.replace(" ", ""))


@pytest.mark.parametrize(("keys", "at"), [_late("e", "three"), _late("p p p e", "two"), _late("r", "three")])
async def test_what_is_written_late_is_edited_and_answered_again_like_the_rest(
    file: Path, monkeypatch: pytest.MonkeyPatch, keys: list[str], at: str
) -> None:
    monkeypatch.setattr("specchat.history.database.BUSY_TIMEOUT", 0.05)
    store = Store(file)
    with ExitStack() as locked, Store(file) as reader:
        async with chatting(ScriptedClient(numbered), WIDE, store=store) as chat:
            await chat.say("one")
            lock(file, store, locked)
            await chat.say("two")
            await chat.say("three")
            await focus(chat)
            await press(chat, *keys)
            assert "saved" in chat.note
            locked.close()
            await press(chat, "escape")
            await focus(chat)
            await press(chat, *keys)
            if "e" in keys:
                await chat.until(lambda: chat.box.text == at)
                await press(chat, "!", "enter")
                at += "!"
            await chat.until(lambda: chat.idle and len(chat.client.asked) == 4)
            await chat.shows(f"Reply to {at}.", "version 2 of 2")
            asked = [m.content for m in chat.client.asked[-1] if m.role == "user"]
            assert asked == {"two!": ["one", "two!"]}.get(at, ["one", "two", at])
            kept = reader.last()
            assert kept is not None
            assert [m.content for m in reader.path(kept.leaf) if m.role == "user"] == asked
            assert len(reader.tree(kept.id)) == {"three": 7}.get(at, 8)


async def test_a_reply_written_late_is_written_on(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specchat.history.database.BUSY_TIMEOUT", 0.05)
    store = Store(file)
    client = ScriptedClient(until(threading.Event(), "Once upon ", "never"))
    with ExitStack() as locked, Store(file) as reader:
        async with chatting(client, WIDE, store=store) as chat:
            lock(file, store, locked)
            await chat.say("a story", wait=False)
            await chat.shows("Once upon")
            await press(chat, "escape")
            await chat.until(lambda: chat.idle)
            locked.close()
            client.script = words("a time.")
            await chat.say("/continue")
            await chat.shows("Once upon a time.")
            await chat.until(lambda: chat.idle)
            kept = reader.last()
            assert kept is not None
            assert [m.content for m in reader.path(kept.leaf)] == ["a story", "Once upon a time."]


async def test_late_turns_that_are_not_mounted_any_more_are_known_too(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specchat.history.database.BUSY_TIMEOUT", 0.05)
    monkeypatch.setattr("specchat.tui.widgets.transcript._MOST", 20)
    store = Store(file)
    with ExitStack() as locked:
        async with chatting(ScriptedClient(numbered), WIDE, store=store) as chat:
            lock(file, store, locked)
            for number in range(8):
                await chat.say(f"question {number}")
            locked.close()
            await chat.say("last")
            await focus(chat)
            await press(chat, "p", "p", "p", "e")
            transcript = chat.screen.transcript
            shown = [*transcript._older, *(turn.shown for turn in transcript.turns)]
            assert transcript._older
            assert [turn.id for turn in shown] == [m.id for m in store.path(chat.screen.journal.leaf)]
