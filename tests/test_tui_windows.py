"""Two windows on one history: what one writes is noticed, announced and reached in the other."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from textual import events
from textual.widgets import OptionList

from specchat.engine.replies import Event, Message
from specchat.history import Conversation, Store
from specchat.tui.screens import conversations
from specchat.tui.screens.conversations import ConversationsScreen
from tests.scripted_client import ScriptedClient, until, words
from tests.tui import Chat, chatting

ANNOUNCED = "Another window went on with this conversation: F5 shows what it added."


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


@pytest.fixture
def other(file: Path) -> Iterator[Store]:
    """What another window has open."""
    with Store(file) as store:
        yield store


def echo(client: ScriptedClient, messages: Sequence[Message]) -> Iterator[Event]:
    yield from words(f"so: {messages[-1].content}")(client, messages)


def open_one(chat: Chat) -> Conversation:
    now = chat.screen.journal.conversation
    assert now is not None
    return now


def go_on(store: Store, conversation: Conversation, text: str, after: int | None) -> int:
    """Another window says something and gets an answer; the answer's id."""
    question = store.send(conversation.id, text, after=after).message
    reply = store.begin_reply(question.id)
    store.finish(reply.id, content=f"there: {text}")
    return reply.id


async def test_what_was_added_after_the_end_is_announced_once_and_shown_on_request(file: Path, other: Store) -> None:
    async with chatting(ScriptedClient(echo), store=Store(file)) as chat:
        await chat.say("one")
        assert "F5" not in chat.text
        leaf = go_on(other, open_one(chat), "two", chat.screen.journal.leaf)
        await chat.shows(ANNOUNCED, "F5 Other window")
        go_on(other, open_one(chat), "three", leaf)
        await chat.screen.look()
        assert chat.text.count(ANNOUNCED) == 1
        assert "there: two" not in chat.text
        assert len(chat.session.messages) == 2
        await chat.pilot.press("f5")
        await chat.shows("there: two", "there: three")
        assert ANNOUNCED not in chat.text
        assert "F5" not in chat.text
        assert [m.content for m in chat.session.messages][-2:] == ["three", "there: three"]
        await chat.pilot.press("f5")
        assert chat.note == "No other window has added anything here."
        await chat.say("four")
        assert "version" not in chat.text


async def test_what_is_said_here_meanwhile_is_a_branch_and_both_are_reached(file: Path, other: Store) -> None:
    async with chatting(ScriptedClient(echo), store=Store(file)) as chat:
        await chat.say("one")
        go_on(other, open_one(chat), "there", chat.screen.journal.leaf)
        await chat.say("here")
        await chat.shows("this is a branch of its own, F5 shows the other", "so: here", "version 2 of 2")
        assert [m.content for m in chat.session.messages] == ["one", "so: one", "here", "so: here"]
        await chat.screen.look()
        assert ANNOUNCED not in chat.text
        await chat.pilot.press("f5")
        await chat.shows("there: there", "version 1 of 2")
        chat.screen.set_focus(chat.screen.transcript)
        await chat.pilot.press("p", "p", "l")
        await chat.shows("so: here", "version 2 of 2")


async def test_another_version_of_what_is_shown_is_counted(file: Path, other: Store) -> None:
    async with chatting(ScriptedClient(echo), store=Store(file)) as chat:
        await chat.say("one")
        question = other.path(chat.screen.journal.leaf)[0]
        reply = other.begin_reply(other.edit(question.id, "one, better").id)
        other.finish(reply.id, content="there: better")
        await chat.shows(ANNOUNCED, "version 1 of 2")
        await chat.pilot.press("f5")
        await chat.shows("there: better", "version 2 of 2")


async def test_what_this_window_writes_is_never_announced(file: Path, other: Store) -> None:
    async with chatting(ScriptedClient(echo), store=Store(file)) as chat:
        for _ in range(2):
            await chat.say("one")
            await chat.say("/regen")
            other.create()  # nothing to do with it
            await chat.screen.look()
        await chat.pilot.press("ctrl+n")
        await chat.say("two")
        other.keep_unsent(open_one(chat).id, "text")
        await chat.screen.look()
        assert chat.screen.journal.elsewhere is None


async def test_a_reader_who_scrolled_up_is_left_there(file: Path, other: Store) -> None:
    async with chatting(ScriptedClient(words("long\n\n" * 60)), store=Store(file)) as chat:
        await chat.say("one")
        await chat.pilot.press("pageup")
        await chat.until(lambda: not chat.screen.transcript.at_end)
        y = chat.screen.transcript.scroll_y
        go_on(other, open_one(chat), "two", chat.screen.journal.leaf)
        await chat.shows("F5 Other window")
        assert chat.screen.transcript.scroll_y == y


async def test_it_is_not_shown_in_the_middle_of_a_reply(file: Path, other: Store) -> None:
    gate = threading.Event()
    async with chatting(ScriptedClient(until(gate, "begun ", "done")), store=Store(file)) as chat:
        await chat.say("one", wait=False)
        await chat.shows("begun")
        question = other.path(chat.screen.journal.leaf)[0]
        other.edit(question.id, "one, better")
        await chat.shows("F5 Other window")
        await chat.pilot.press("f5")
        assert chat.note == "Stop the reply first."
        gate.set()
        await chat.until(lambda: chat.idle)
        await chat.shows("begun done")
        await chat.pilot.press("f5")
        await chat.shows("one, better")


async def test_a_reply_that_is_written_elsewhere_is_followed_to_its_end(file: Path) -> None:
    with Store(file) as other:
        kept = other.create()
        question = other.send(kept.id, "one", after=None).message
        reply = other.begin_reply(question.id)
        other.append_to(reply.id, "begun")
        async with chatting(ScriptedClient(echo), store=Store(file), resume=kept) as chat:
            await chat.shows("begun", "being written in another window")
            other.append_to(reply.id, " and gone on")
            await chat.shows("begun and gone on", "being written in another window")
            other.finish(reply.id, figures={"passes": 9, "context_used": 77, "context_size": 4096})
            await chat.until(lambda: "being written" not in chat.text)
            assert "77" in chat.status
            assert [m.content for m in chat.session.messages] == ["one", "begun and gone on"]
            assert ANNOUNCED not in chat.text


async def test_coming_back_to_the_window_is_enough(file: Path, other: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specchat.tui.screens.chat.LOOK", 1000.0)
    async with chatting(ScriptedClient(echo), store=Store(file)) as chat:
        await chat.say("one")
        go_on(other, open_one(chat), "two", chat.screen.journal.leaf)
        chat.app.post_message(events.AppFocus())
        await chat.shows(ANNOUNCED)


# ---- the list


def fill(store: Store, count: int) -> None:
    for number in range(count):
        store.send(store.create().id, f"talk {number}", after=None)


async def test_the_list_follows_other_windows_and_keeps_its_place(file: Path) -> None:
    with Store(file) as other:
        fill(other, 3)
        async with chatting(store=Store(file)) as chat:
            await chat.pilot.press("ctrl+r", "down")
            await chat.shows("talk 1")
            screen = chat.app.screen
            assert isinstance(screen, ConversationsScreen)
            chosen = screen._chosen
            assert chosen is not None
            other.send(other.create().id, "brand new", after=None)
            await chat.shows("brand new")
            assert screen._chosen is not None
            assert screen._chosen.conversation == chosen.conversation
            screen.action_delete()
            await chat.shows("Deleted: talk 1.")
            other.send(other.create().id, "newer still", after=None)
            await chat.shows("newer still", "Deleted: talk 1.")


async def test_more_conversations_come_as_one_scrolls(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "_PAGE", 30)
    with Store(file) as store:
        fill(store, 100)
        async with chatting(size=(80, 24), store=store) as chat:
            await chat.pilot.press("ctrl+r")
            await chat.shows("talk 99")
            options = chat.app.screen.query_one(OptionList)
            await chat.until(lambda: 30 <= options.option_count < 100)
            for _ in range(99):
                await chat.pilot.press("down")
            await chat.shows("talk 0 ")
            assert options.option_count == 100
            screen = chat.app.screen
            assert isinstance(screen, ConversationsScreen)
            assert len({entry.conversation for entry in screen._entries}) == 100
            for key in "talk":
                await chat.pilot.press(key)
            await chat.until(lambda: options.option_count == 30)
            options.scroll_end(animate=False)
            await chat.pilot.pause()
            assert options.option_count == 30


async def test_a_list_that_does_not_fill_the_terminal_is_filled(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "_PAGE", 5)
    with Store(file) as store:
        fill(store, 60)
        async with chatting(size=(80, 50), store=store) as chat:
            await chat.pilot.press("ctrl+r")
            options = chat.app.screen.query_one(OptionList)
            await chat.until(lambda: options.option_count >= options.size.height)
            options.scroll_end(animate=False)
            await chat.until(lambda: options.option_count == 60)
