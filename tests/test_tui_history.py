"""The screen and the history: what is on disk when, branches, resuming, the list of conversations."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from textual.widgets import Input, OptionList

from specchat.commands import resuming
from specchat.engine.replies import Event, Finished, Message
from specchat.errors import SpecchatError
from specchat.history import KEEP_DELETED, HistoryError, Store
from specchat.session import Attachment
from specchat.tui import app
from specchat.tui.app import SpecchatApp
from specchat.tui.journal import spoken
from specchat.tui.widgets.transcript import Transcript
from specchat.worker.client import EngineError
from tests.scripted_client import ScriptedClient, generated, session, until, words
from tests.tui import HOSTILE, Chat, chatting


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the conversations are."""
    return tmp_path / "history.db"


def numbered(client: ScriptedClient, messages: Sequence[Message]) -> Iterator[Event]:
    """Replies that can be told apart, and that repeat the question."""
    text = f"Reply {len(client.asked)} to {messages[-1].content}."
    yield generated(text, client.figures(1))
    yield Finished("end", client.figures(1))


async def focus(chat: Chat) -> None:
    """Put the keys into the conversation."""
    chat.screen.query_one(Transcript).focus()
    await chat.pilot.pause()


# ---- on disk when it matters


async def test_the_question_is_on_disk_before_decoding_and_the_reply_grows_there(file: Path) -> None:
    gate = threading.Event()
    seen: list[list[str]] = []

    def script(client: ScriptedClient, _: Sequence[Message]) -> Iterator[Event]:
        with Store(file) as other:
            kept = other.last()
            assert kept is not None
            seen.append([m.content for m in other.path(kept.leaf)])
        yield from until(gate, "partial text ", "and its end")(client, ())

    async with chatting(ScriptedClient(script), store=Store(file)) as chat:
        await chat.say("my question", wait=False)
        await chat.shows("partial text")
        assert seen == [["my question", ""]]
        with Store(file) as other:
            kept = other.last()
            assert kept is not None
            await chat.until(lambda: other.path(kept.leaf)[-1].content == "partial text ")
            assert other.path(kept.leaf)[-1].state == "streaming"
            gate.set()
            await chat.until(lambda: chat.idle)
            done = other.path(kept.leaf)[-1]
            assert (done.content, done.state) == ("partial text and its end", "complete")
            assert done.figures["tokens"] == 2
            assert done.settings["temperature"] == 0.8
            assert done.pair == "demo"


async def test_what_is_in_the_box_is_on_disk_soon_and_comes_back(file: Path) -> None:
    async with chatting(store=Store(file)) as chat:
        await chat.say("one")
        await chat.type("half a thou")
        with Store(file) as other:
            await chat.until(lambda: (kept := other.last()) and kept.unsent == "half a thou")
    with Store(file) as store:
        async with chatting(store=store, resume=store.last()) as chat:
            assert chat.box.text == "half a thou"
            await chat.shows("one", "Hello there.")


async def test_a_resumed_conversation_goes_on_where_it_was(file: Path) -> None:
    async with chatting(ScriptedClient(numbered), store=Store(file)) as chat:
        await chat.say("/system Be brief.")
        await chat.say("one")
    with Store(file) as store:
        async with chatting(ScriptedClient(numbered), store=store, resume=store.last()) as chat:
            await chat.shows("one", "Reply 1 to one.", "draft · 1 token · 52.1 tok/s")
            await chat.say("two")
            assert [(m.role, m.content) for m in chat.client.asked[0]] == [
                ("system", "Be brief."),
                ("user", "one"),
                ("assistant", "Reply 1 to one."),
                ("user", "two"),
            ]
            await chat.pilot.press("up", "up")
            assert chat.box.text == "one"
    with Store(file) as store:
        assert len(store.conversations()) == 1


async def test_a_history_that_fails_never_stops_the_chat(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(file)

    def refuse(*_: object, **__: object) -> None:
        raise HistoryError("the disk is full")

    async with chatting(store=store) as chat:
        monkeypatch.setattr(store, "create", refuse)
        await chat.say("hi")
        await chat.shows("Hello there.", "The disk is full. Until that works, what is said is kept on the screen only.")
        await chat.say("again")
        assert len(chat.client.asked) == 2
        assert len(chat.session.messages) == 4


async def test_a_damaged_file_is_set_aside_with_a_word(file: Path) -> None:
    file.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    async with chatting(store=Store(file)) as chat:
        await chat.shows("set aside")
        await chat.say("hi")
        await chat.shows("Hello there.")


@pytest.mark.parametrize("wanted", ["last", "2abc"])
def test_what_became_of_a_damaged_file_is_said_to_who_wants_to_go_on(file: Path, wanted: str) -> None:
    with Store(file) as store, pytest.raises(SpecchatError, match="no conversation"):
        resuming.conversation(store, wanted)
    file.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    with Store(file) as store, pytest.raises(SpecchatError, match=r"set aside as .*; (there is )?no conversation"):
        resuming.conversation(store, wanted)


async def test_a_message_without_an_answer_is_replaced_by_the_next(file: Path) -> None:
    def fail(client: ScriptedClient, _: Sequence[Message]) -> Iterator[Event]:
        raise EngineError("the prompt is too long")
        yield from words("")(client, ())  # pragma: no cover

    async with chatting(ScriptedClient(fail), store=Store(file)) as chat:
        await chat.say("too much")
        await chat.shows("The prompt is too long")
        chat.client.script = words("Fine.")
        chat.box.replace_all("less")
        await chat.pilot.press("enter")
        await chat.shows("Fine.")
    with Store(file) as store:
        kept = store.last()
        assert kept is not None
        assert [m.content for m in store.path(kept.leaf)] == ["less", "Fine."]


async def test_another_window_makes_a_branch_that_is_announced(file: Path) -> None:
    async with chatting(store=Store(file)) as chat:
        await chat.say("one")
        with Store(file) as other:
            kept = other.last()
            assert kept is not None
            other.send(kept.id, "from elsewhere", after=kept.leaf)
        await chat.say("two")
        await chat.shows("Another window went on here", "version 2 of 2")
        assert [m.content for m in chat.session.messages] == ["one", "Hello there.", "two", "Hello there."]


# ---- one turn


async def test_a_reply_is_written_again_and_both_stay(file: Path) -> None:
    async with chatting(ScriptedClient(numbered), store=Store(file)) as chat:
        await chat.say("hi")
        await focus(chat)
        await chat.pilot.press("r")
        await chat.shows("Reply 2 to hi.", "version 2 of 2")
        await chat.until(lambda: chat.idle)
        assert "Reply 1" not in chat.text
        assert [m.content for m in chat.client.asked[1]] == ["hi"]
        await chat.pilot.press("h")
        await chat.shows("Reply 1 to hi.", "version 1 of 2")
        assert [m.content for m in chat.session.messages] == ["hi", "Reply 1 to hi."]
        await chat.pilot.press("l")
        await chat.shows("Reply 2 to hi.")
        await chat.pilot.press("l")
        await chat.shows("Reply 2 to hi.")


async def test_what_was_said_of_versions_is_gone_once_there_is_another(file: Path) -> None:
    async with chatting(ScriptedClient(numbered), store=Store(file)) as chat:
        await chat.say("hi")
        await focus(chat)
        await chat.pilot.press("h")
        await chat.until(lambda: "There is one version of this only" in chat.note)
        await chat.pilot.press("r")
        await chat.shows("Reply 2 to hi.", "version 2 of 2")
        await chat.until(lambda: chat.idle)
        assert chat.note == ""


async def test_the_key_to_a_message_with_versions_is_named_at_its_reply(file: Path) -> None:
    async with chatting(ScriptedClient(numbered), store=Store(file)) as chat:
        await chat.say("hi")
        await focus(chat)
        await chat.pilot.press("e")
        await chat.type(" there")
        await chat.pilot.press("enter")
        await chat.shows("Reply 2 to hi there.", "version 2 of 2")
        await chat.until(lambda: chat.idle)
        await focus(chat)
        await chat.pilot.press("h")
        await chat.until(lambda: "one of 2 versions of a message: p selects" in chat.note)
        await chat.pilot.press("p", "h")
        await chat.shows("Reply 1 to hi.", "version 1 of 2")


async def test_an_earlier_message_is_edited_and_sent_again(file: Path) -> None:
    async with chatting(ScriptedClient(numbered), store=Store(file)) as chat:
        await chat.say("first")
        await chat.say("second")
        await focus(chat)
        await chat.pilot.press("p", "p", "p", "p", "e")
        await chat.shows("Editing an earlier message")
        assert chat.box.text == "first"
        await chat.type(" and better")
        await chat.pilot.press("enter")
        await chat.shows("Reply 3 to first and better.", "version 2 of 2")
        await chat.until(lambda: chat.idle)
        assert "second" not in chat.text
        assert [m.content for m in chat.client.asked[2]] == ["first and better"]
        await chat.say("/edit", wait=False)
        await chat.shows("Editing an earlier message")
        await chat.pilot.press("escape")
        await chat.pilot.pause()
        assert chat.box.text == ""
        assert "Editing" not in chat.text


async def test_sending_an_edit_stops_the_running_reply_which_stays_on_its_branch(file: Path) -> None:
    client = ScriptedClient(until(threading.Event(), "partial ", "never"))
    async with chatting(client, store=Store(file)) as chat:
        await chat.say("hi", wait=False)
        await chat.shows("partial")
        await focus(chat)
        await chat.pilot.press("e")
        await chat.shows("Editing")
        assert not chat.idle
        client.script = words("New.")
        chat.box.replace_all("hello")
        await chat.pilot.press("enter")
        await chat.shows("New.")
        await chat.until(lambda: chat.idle)
    with Store(file) as store:
        kept = store.last()
        assert kept is not None
        assert [m.content for m in store.tree(kept.id)] == ["hi", "partial ", "hello", "New."]


async def test_a_stopped_reply_is_written_on(file: Path) -> None:
    client = ScriptedClient(until(threading.Event(), "Once upon ", "never"))
    async with chatting(client, store=Store(file)) as chat:
        await chat.say("a story", wait=False)
        await chat.shows("Once upon")
        await chat.pilot.press("escape")
        await chat.until(lambda: chat.idle)
        client.script = words("a time.")
        await chat.say("/continue")
        await chat.shows("Once upon a time.")
        assert client.options[-1].continue_last
        assert client.asked[-1][-1].content == "Once upon "
        assert [m.content for m in chat.session.messages] == ["a story", "Once upon a time."]
        await chat.say("/continue")
        assert "Only a last reply that was stopped" in chat.note
    with Store(file) as store:
        kept = store.last()
        assert kept is not None
        assert [(m.content, m.state) for m in store.path(kept.leaf)] == [
            ("a story", "complete"),
            ("Once upon a time.", "complete"),
        ]


async def test_replies_and_code_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TMUX", raising=False)
    source = "Look:\n\n```py\nprint(1)\n```\n\nand\n\n```\nsecond\n```"
    async with chatting(ScriptedClient(words(source))) as chat:
        await chat.say("code?")
        await focus(chat)
        await chat.pilot.press("y")
        assert chat.app.clipboard == source
        assert "OSC 52" in chat.note
        await chat.pilot.press("c")
        assert chat.app.clipboard == "second"
        await chat.say("/copy code 1")
        assert chat.app.clipboard == "print(1)"
        await chat.say("/copy code 3")
        assert "2 code blocks" in chat.note
        await chat.say("/copy all")
        assert "/copy code N" in chat.note
        chat.box.clear()
        await focus(chat)
        await chat.pilot.press("p", "p", "y")
        assert chat.app.clipboard == "code?"


@pytest.mark.parametrize("end", ["escape", "enter", "ctrl+n"])
async def test_what_the_box_held_comes_back_when_an_edit_ends(file: Path, end: str) -> None:
    async with chatting(store=Store(file)) as chat:
        await chat.say("one")
        old = chat.screen.journal.conversation
        assert old is not None
        await chat.type("half a thought")
        for _ in range(2):  # the second time it is open already
            await focus(chat)
            await chat.pilot.press("p", "e")
            await chat.until(lambda: chat.box.text == "one")
        await chat.type(" and two")
        with Store(file) as other:
            await chat.until(lambda: (kept := other.last()) and kept.unsent == "half a thought\n\none and two")
        await chat.pilot.press(end)
        await chat.until(lambda: chat.screen.editing is None and chat.idle)
        if end == "ctrl+n":
            assert not chat.box.text
            await chat.screen.open_conversation(old)
            assert chat.box.text == "half a thought\n\none and two"
        else:
            assert chat.box.text == "half a thought"
            assert len(chat.client.asked) == (2 if end == "enter" else 1)


async def test_selecting_with_the_mouse_leaves_the_keys_to_the_box(file: Path) -> None:
    async with chatting(store=Store(file)) as chat:
        await chat.say("hello world")
        turn = chat.screen.transcript.turns[0]
        await chat.pilot.mouse_down(turn, offset=(1, 0))
        await chat.pilot.hover(turn, offset=(9, 0))
        await chat.pilot.mouse_up(turn, offset=(9, 0))
        await chat.until(chat.screen.get_selected_text)
        await chat.until(lambda: chat.box.has_focus)
        await chat.pilot.press("ctrl+c")
        assert chat.app.clipboard
        assert chat.app.clipboard in "hello world"
        await chat.type("more")
        assert chat.box.text == "more"
        await chat.pilot.click(turn)
        await chat.until(lambda: chat.screen.transcript.has_focus)


async def test_what_interrupted_a_reply_is_gone_once_it_is_written_on(file: Path) -> None:
    def breaks(client: ScriptedClient, _: Sequence[Message]) -> Iterator[Event]:
        yield generated("half ", client.figures(1))
        raise EngineError("the engine gave up")

    async with chatting(ScriptedClient(breaks), store=Store(file)) as chat:
        await chat.say("one")
        await chat.shows("half", "The engine gave up", "interrupted")
        chat.client.script = words("and whole")
        await chat.say("/continue")
        await chat.shows("half and whole")
        assert "gave up" not in chat.text


@pytest.mark.parametrize("anew", [False, True])
async def test_a_reply_that_failed_at_once_is_not_written_on_with_the_one_before(file: Path, anew: bool) -> None:
    def fail(*_: object) -> Iterator[Event]:
        raise EngineError("the message is too long")
        yield

    async with chatting(store=Store(file)) as chat:
        await chat.say("one")
        chat.client.script = fail
        await chat.say("two")
        await chat.shows("no reply", "The message is too long")
        assert "interrupted" not in chat.text
        conversation = chat.screen.journal.conversation
        assert conversation is not None
        if anew:
            await chat.pilot.press("ctrl+n")
            await chat.screen.open_conversation(conversation)
        chat.box.replace_all("")
        chat.client.script = words("Not this.")
        asked = len(chat.client.asked)
        await chat.say("/continue")
        assert "There is no text to go on from" in chat.note
        assert len(chat.client.asked) == asked


# ---- several conversations


async def test_another_conversation_is_typed_in_at_once(file: Path) -> None:
    async with chatting(store=Store(file)) as chat:
        await chat.say("one")
        old = chat.screen.journal.conversation
        assert old is not None
        await focus(chat)
        await chat.pilot.press("ctrl+n")
        await chat.until(lambda: chat.box.has_focus)
        await focus(chat)
        await chat.screen.open_conversation(old)
        await chat.until(lambda: chat.box.has_focus)


async def test_leaving_a_conversation_lets_its_reply_finish_there(file: Path) -> None:
    gate = threading.Event()
    async with chatting(ScriptedClient(until(gate, "begun ", "and done")), store=Store(file)) as chat:
        await chat.say("old", wait=False)
        await chat.shows("begun")
        await chat.pilot.press("ctrl+n")
        await chat.shows("demo pair")
        await chat.say("new", wait=False)
        await chat.shows("Next, after the reply in another conversation: new")
        chat.client.script = words("Fresh.")
        gate.set()
        await chat.shows("Fresh.")
        await chat.until(lambda: chat.idle)
        assert [m.content for m in chat.session.messages] == ["new", "Fresh."]
        assert [m.content for m in chat.client.asked[1]] == ["new"]
    with Store(file) as store:
        texts = [[m.content for m in store.path(c.leaf)] for c in store.conversations()]
        assert texts == [["new", "Fresh."], ["old", "begun and done"]]


@pytest.mark.parametrize("key", ["escape", "ctrl+c"])
@pytest.mark.parametrize("where", ["new", "other"])
async def test_only_the_reply_that_is_shown_is_stopped(file: Path, where: str, key: str) -> None:
    gate = threading.Event()
    with Store(file) as store:
        store.finish(store.begin_reply(store.send(store.create().id, "another", after=None).message.id).id)
    async with chatting(ScriptedClient(until(gate, "begun ", "and done")), store=Store(file)) as chat:
        await chat.say("old", wait=False)
        await chat.shows("begun", "Esc Stop")
        old = chat.screen.journal.conversation
        assert old is not None
        if where == "new":
            await chat.pilot.press("ctrl+n")
        else:
            await chat.screen.open_conversation(chat.screen.journal.store.conversations()[-1])
        await chat.until(lambda: "writing in another conversation" in chat.status)
        assert "Esc Stop" not in chat.text
        await chat.pilot.press(key)
        await chat.pilot.pause()
        assert not chat.client.cancelled.is_set()
        if key == "escape":
            assert "A reply is being written in another conversation; Ctrl+R leads there" in chat.note
        for command, said in (("/unload", "other conversation first"), ("/answer", "No reply is being written.")):
            await chat.say(command, wait=False)
            await chat.shows(said)
            chat.box.replace_all("")
        await chat.say("new", wait=False)
        await chat.shows("Next, after the reply in another conversation: new")
        await chat.screen.open_conversation(old)
        await chat.shows("begun", "Esc Stop")
        await chat.pilot.press(key)
        await chat.until(lambda: chat.idle)
        await chat.shows("stopped")
        assert len(chat.client.asked) == 1


async def test_a_new_version_waits_for_the_reply_of_another_conversation(file: Path) -> None:
    gate = threading.Event()
    async with chatting(store=Store(file)) as chat:
        await chat.say("first")
        first = chat.screen.journal.conversation
        assert first is not None
        await chat.pilot.press("ctrl+n")
        chat.client.script = until(gate, "begun ", "and done")
        await chat.say("second", wait=False)
        await chat.shows("begun")
        await chat.screen.open_conversation(first)
        chat.screen.edit(chat.screen.transcript.turns[0])
        chat.box.replace_all("")
        await chat.say("first anew", wait=False)
        await chat.until(lambda: "once the reply in another conversation has ended" in chat.note)
        assert not chat.client.cancelled.is_set()
        chat.client.script = words("Anew.")
        gate.set()
        await chat.shows("first anew", "Anew.")
        with Store(file) as store:
            texts = {store.path(c.leaf)[-1].content for c in store.conversations()}
            assert texts == {"begun and done", "Anew."}


async def test_a_reply_that_fails_where_it_was_left_says_so(file: Path) -> None:
    gate = threading.Event()

    def fail(client: ScriptedClient, _: Sequence[Message]) -> Iterator[Event]:
        yield generated("begun ", client.figures(1))
        gate.wait(10)
        raise EngineError("the context is broken")

    async with chatting(ScriptedClient(fail), store=Store(file)) as chat:
        await chat.say("old", wait=False)
        await chat.shows("begun")
        await chat.pilot.press("ctrl+n")
        await chat.say("new", wait=False)
        gate.set()
        await chat.shows("The reply in another conversation failed. The context is broken.")
        await chat.until(lambda: chat.box.text == "new")


@pytest.mark.parametrize("where", ["new", "other"])
async def test_a_message_that_waits_stays_in_its_conversation(file: Path, where: str) -> None:
    gate = threading.Event()
    with Store(file) as store:
        store.begin_reply(store.send(store.create().id, "another", after=None).message.id)
    async with chatting(ScriptedClient(until(gate, "begun ", "and done")), store=Store(file)) as chat:
        await chat.say("old", wait=False)
        await chat.shows("begun")
        await chat.say("for the old one", wait=False)
        await chat.shows("Next: for the old one")
        await chat.type("and more")
        old = chat.screen.journal.conversation
        assert old is not None
        if where == "new":
            await chat.pilot.press("ctrl+n")
        else:
            other = chat.screen.journal.store.conversations()[-1]
            await chat.screen.open_conversation(other)
        await chat.until(lambda: "Next:" not in chat.text)
        gate.set()
        await chat.until(lambda: chat.idle)
        assert len(chat.client.asked) == 1
        await chat.screen.open_conversation(old)
        assert chat.box.text == "for the old one\n\nand more"


async def test_a_message_that_waits_is_on_disk_and_so_is_the_box_when_it_is_sent(file: Path) -> None:
    first, second = threading.Event(), threading.Event()
    async with chatting(ScriptedClient(until(first, "begun ", "and done")), store=Store(file)) as chat:
        await chat.say("one", wait=False)
        await chat.shows("begun")
        await chat.say("two", wait=False)
        await chat.shows("Next: two")
        with Store(file) as other:
            await chat.until(lambda: (kept := other.last()) and kept.unsent == "two")
            await chat.type("three")
            await chat.until(lambda: (kept := other.last()) and kept.unsent == "two\n\nthree")
            chat.client.script = until(second, "more ", "and done")
            first.set()
            await chat.shows("more")
            assert [kept.unsent for kept in other.conversations()] == ["three"]
            second.set()
            await chat.until(lambda: chat.idle)


async def test_coming_back_before_the_reply_ends_shows_its_end(file: Path) -> None:
    gate = threading.Event()
    async with chatting(ScriptedClient(until(gate, "begun ", "and done")), store=Store(file)) as chat:
        await chat.say("old", wait=False)
        await chat.shows("begun")
        old = chat.screen.journal.conversation
        assert old is not None
        await chat.screen.start_anew()
        await chat.screen.open_conversation(old)
        gate.set()
        await chat.until(lambda: chat.idle)
        await chat.shows("begun and done")
        assert [m.content for m in chat.session.messages] == ["old", "begun and done"]


async def test_a_reply_goes_on_live_where_one_comes_back_to_it(file: Path) -> None:
    first, second = threading.Event(), threading.Event()

    def script(client: ScriptedClient, _: Sequence[Message]) -> Iterator[Event]:
        yield generated("begun ", client.figures(1))
        first.wait(10)
        yield generated("going on ", client.figures(2))
        second.wait(10)
        yield generated("and done", client.figures(3))
        yield Finished("end", client.figures(3))

    async with chatting(ScriptedClient(script), store=Store(file)) as chat:
        await chat.say("old", wait=False)
        await chat.shows("begun")
        old = chat.screen.journal.conversation
        assert old is not None
        await chat.pilot.press("ctrl+n")
        await chat.shows("demo pair")
        await chat.screen.open_conversation(old)
        await chat.shows("begun", "●")
        first.set()
        await chat.shows("begun going on")
        assert not chat.idle
        second.set()
        await chat.until(lambda: chat.idle)
        await chat.shows("begun going on and done")
        assert [turn.shown.text for turn in chat.screen.transcript.turns] == ["old", "begun going on and done"]
        assert [m.content for m in chat.session.messages] == ["old", "begun going on and done"]
        await chat.say("next")
        assert len(chat.session.messages) == 4


async def test_conversations_are_listed_searched_and_opened(file: Path) -> None:
    async with chatting(ScriptedClient(numbered), store=Store(file)) as chat:
        await chat.say("about whales")
        await chat.pilot.press("ctrl+n")
        await chat.say("about ships")
        await chat.pilot.press("ctrl+r")
        await chat.shows("about whales", "about ships", "2 turns", "now")
        for key in "whale":
            await chat.pilot.press(key)
        await chat.until(lambda: "about ships" not in str(chat.app.screen.query_one(OptionList).options[0].prompt))
        await chat.shows("Reply 1 to about whales.")
        await chat.pilot.press("enter")
        await chat.until(lambda: [m.content for m in chat.session.messages][:1] == ["about whales"])
        await chat.shows("Reply 1 to about whales.")
        await chat.say("/search nothing-like-it", wait=False)
        await chat.shows("Nothing was found.")
        await chat.pilot.press("escape")
        await chat.pilot.pause()
        assert "Conversations ─" not in chat.text


async def test_conversations_are_renamed_deleted_and_brought_back(file: Path) -> None:
    async with chatting(ScriptedClient(numbered), store=Store(file)) as chat:
        await chat.say("one")
        await chat.pilot.press("ctrl+n")
        await chat.say("two")
        await chat.pilot.press("ctrl+r")
        await chat.pilot.press("f2")
        chat.app.screen.query_one("#rename", Input).value = "Number two"
        await chat.pilot.press("enter")
        await chat.shows("Number two")
        await chat.pilot.press("ctrl+x")
        await chat.shows("Deleted: Number two. Ctrl+Z brings it back.")
        await chat.pilot.press("ctrl+z")
        await chat.shows("Number two  now")
        await chat.pilot.press("ctrl+z")
        await chat.shows("There is none to bring back.")
        await chat.pilot.press("ctrl+x", "escape")
        await chat.shows("demo pair")
        assert chat.session.messages == ()
        await chat.pilot.press("ctrl+r", "ctrl+z")  # the list was closed meanwhile
        await chat.shows("Back again: Number two.")
        await chat.pilot.press("ctrl+x", "escape")
    with Store(file) as store:
        assert [c.title for c in store.conversations()] == ["one"]


def test_what_was_deleted_long_ago_is_removed_on_leaving(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    store = Store(file, clock=lambda: now)
    old, fresh, shown = (store.send(store.create().id, "hi", after=None).message.conversation for _ in range(3))
    empty = store.create().id
    store.delete(old)
    now += (KEEP_DELETED + timedelta(hours=1)).total_seconds()
    store.delete(fresh)
    late = store.create().id
    now += timedelta(days=2).total_seconds()
    monkeypatch.setattr(SpecchatApp, "run", lambda *_, **__: None)
    app.run(session(ScriptedClient()), store=store)
    with Store(file) as store:
        for kept in (fresh, shown, late):
            assert store.conversation(kept)
        for gone in (old, empty):
            with pytest.raises(HistoryError):
                store.conversation(gone)


async def test_a_conversation_is_exported(file: Path, tmp_path: Path) -> None:
    async with chatting(ScriptedClient(numbered), store=Store(file)) as chat:
        await chat.say("/export")
        assert "empty" in chat.note
        chat.box.clear()
        await chat.say("hi")
        target = tmp_path / "talk.md"
        await chat.say(f"/export {target}")
        assert "Saved as" in chat.note
        assert "Reply 1 to hi." in target.read_text()
        await chat.say(f"/export json {target}")
        assert "exists already" in chat.note
        chat.box.clear()
        await chat.say(f"/export {tmp_path / 'talk.json'}")
        assert '"format": "specchat-conversation"' in (tmp_path / "talk.json").read_text()


async def test_a_title_is_shown_set_and_made_from_the_first_message_again(file: Path) -> None:
    async with chatting(store=Store(file)) as chat:
        await chat.say("about whales")
        for typed, said in (
            ("/title", "Its title is: about whales"),
            ("/title My talk", "Its title is: My talk (/title auto makes it from your first message again)"),
            ("/title", "Its title is: My talk (/title auto makes it from your first message again)"),
            ("/title auto", "Its title is: about whales"),
        ):
            await chat.say(typed)
            assert chat.note == said


async def test_the_title_is_what_was_typed_and_not_the_file_before_it(file: Path, tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("import os\n")
    before = (Attachment("notes.txt", "first line of the notes"),)
    async with chatting(store=Store(file), attachments=before) as chat:
        await chat.say(f"what is @{tmp_path}/code.py for?")
        await chat.pilot.press("ctrl+r")
        await chat.shows(f"● what is @{tmp_path}"[:30])
    with Store(file) as store:
        assert store.conversations()[0].title.startswith("what is @")


async def test_what_was_not_sent_yet_is_listed_by_what_it_says(file: Path) -> None:
    with Store(file) as store:
        store.keep_unsent(store.create().id, "\x02a thought\x03\nthat is [red]unfinished")
        store.keep_unsent((named := store.create().id), "another thought")
        store.rename(named, "A name")
        sent = store.send(store.create().id, "a question", after=None, unsent="a third thought").message
        assert sent.id
    async with chatting(store=Store(file)) as chat:
        await chat.pilot.press("ctrl+r")
        await chat.shows("(unsent) a thought that is [red]unfinished", "A name", "a question")
        assert "Untitled" not in chat.text
        assert chat.text.count("unsent text") == 1
        await chat.pilot.press("down", "down", "ctrl+x")
        await chat.shows("Deleted: (unsent) a thought")


@pytest.mark.parametrize("aside", ["", "half a thought"])
@pytest.mark.parametrize("end", ["quit", "ctrl+n"])
async def test_an_edit_that_changed_nothing_leaves_nothing(file: Path, aside: str, end: str) -> None:
    async with chatting(store=Store(file)) as chat:
        await chat.say("one")
        await chat.type(aside)
        await focus(chat)
        await chat.pilot.press("p", "e")
        await chat.until(lambda: chat.box.text == "one")
        if end == "quit":
            await chat.screen.wind_down()
        else:
            await chat.pilot.press(end)
            await chat.until(lambda: not chat.box.text)
        with Store(file) as other:
            assert [(kept.title, kept.unsent) for kept in other.conversations()] == [("one", aside)]


async def test_hostile_titles_and_hits_are_text(file: Path) -> None:
    async with chatting(ScriptedClient(words(HOSTILE)), store=Store(file)) as chat:
        await chat.say(HOSTILE)
        await chat.say(f"/title {HOSTILE}")
        await chat.pilot.press("ctrl+r")
        await chat.shows("[/mnt/data/models]")
        for key in "models":
            await chat.pilot.press(key)
        await chat.shows("[b + [red]x")
        await chat.pilot.press("f2")
        await chat.pilot.pause()
        assert not [ch for ch in chat.text if ch != "\n" and (ch < " " or "\x7f" <= ch <= "\x9f")]


# ---- long conversations


async def test_only_the_last_turns_are_mounted_and_older_ones_come_when_scrolled_to(file: Path) -> None:
    with Store(file) as store:
        kept = store.create()
        leaf = None
        for number in range(300):
            question = store.send(kept.id, f"question {number}", after=leaf).message
            leaf = store.begin_reply(question.id).id
            store.finish(leaf, content=f"answer {number}\n\nand more")
        began = asyncio.get_running_loop().time()
        async with chatting(store=store, resume=store.conversation(kept.id)) as chat:
            assert asyncio.get_running_loop().time() - began < 20
            await chat.shows("answer 299")
            transcript = chat.screen.query_one(Transcript)
            await chat.until(lambda: transcript.max_scroll_y > 3)
            before = len(transcript.turns)
            assert before <= 18
            assert len(chat.session.messages) == 600
            await focus(chat)
            await chat.pilot.press("g")
            await chat.until(lambda: len(transcript.turns) > before and not transcript._growing)
            # What was in view still is.
            await chat.shows(transcript.turns[-before].shown.text.splitlines()[0])
            assert len(transcript.turns) + len(transcript._older) == 600
            await chat.pilot.press("G")
            await chat.shows("answer 299")


async def test_mounted_turns_stay_few_as_a_conversation_grows() -> None:
    async with chatting(ScriptedClient(words("ok"))) as chat:
        for number in range(30):
            await chat.say(f"m{number}")
        transcript = chat.screen.query_one(Transcript)
        assert len(transcript.turns) <= 30
        assert len(transcript.turns) + len(transcript._older) == 60


# ---- values


def test_questions_without_answers_are_not_read_by_the_engine(file: Path) -> None:
    with Store(file) as store:
        kept = store.create()
        one = store.send(kept.id, "one", after=None).message
        first = store.begin_reply(one.id)
        store.finish(first.id, "failed")
        two = store.send(kept.id, "two", after=first.id).message
        second = store.begin_reply(two.id)
        store.finish(second.id, content="answer", reasoning="thought")
        three = store.send(kept.id, "three", after=second.id).message
        said = spoken(store.path(three.id))
        assert [(m.role, m.content, m.reasoning) for m in said] == [
            ("user", "two", ""),
            ("assistant", "answer", "thought"),
        ]
