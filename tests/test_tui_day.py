"""What a chat meets that is kept open all day: other windows, broken editors, failing disks, narrow terminals."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from specchat.engine.replies import Event, Finished, Generated, Message
from specchat.history import HistoryError, Store
from specchat.tui import clipboard, editor
from specchat.tui.completion import candidates
from specchat.tui.invocation import CommandError, invocation
from specchat.tui.screens.question import Question
from specchat.tui.widgets import dock
from specchat.tui.widgets.transcript import Transcript
from tests.scripted_client import ScriptedClient, until, words
from tests.tui import Chat, chatting


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


def echo(client: ScriptedClient, messages: Sequence[Message]) -> Iterator[Event]:
    """The question comes back; the context is as full as the conversation is long."""
    for event in words(f"so: {messages[-1].content}")(client, messages):
        used = sum(len(message.content.split()) for message in messages)
        assert isinstance(event, Generated | Finished)
        yield replace(event, figures=replace(event.figures, context_used=used))


async def focus(chat: Chat) -> None:
    chat.screen.set_focus(chat.screen.transcript)
    await chat.pilot.pause()


# ---- two windows


async def test_what_another_window_is_writing_is_neither_read_nor_stood_on(file: Path) -> None:
    go_on = threading.Event()

    def script(client: ScriptedClient, messages: Sequence[Message]) -> Iterator[Event]:
        return (until(go_on, "partly ", "whole") if len(messages) > 1 else echo)(client, messages)

    async with chatting(ScriptedClient(script), store=Store(file)) as here:
        await here.say("one")
        await here.say("slow", wait=False)
        with Store(file) as reader:
            kept = reader.last()
            assert kept is not None
            await here.until(lambda: reader.path(reader.conversation(kept.id).leaf)[-1].content)
        there_client = ScriptedClient(echo)
        async with chatting(there_client, store=Store(file), resume=kept) as there:
            await there.shows("slow", "partly", "being written in another window")
            await there.say("/continue")
            assert "Only a last reply that was stopped" in there.note
            await there.say("two")
            await there.shows("so: two", "Another window is writing a reply here", "version 2 of 2")
            assert "slow" not in there.text
            said = ["one", "so: one", "two"]
            assert [m.content for m in there_client.asked[-1]] == said
            assert [m.content for m in there.session.messages] == [*said, "so: two"]
            with Store(file) as reader:
                leaf = reader.conversation(kept.id).leaf
                assert [m.content for m in reader.path(leaf)] == [*said, "so: two"]
        go_on.set()
        await here.until(lambda: here.idle)
        await here.shows("partly whole")
        assert [m.content for m in here.session.messages] == ["one", "so: one", "slow", "partly whole"]


# ---- what a conversation keeps


async def test_the_system_prompt_stays_with_its_conversation(file: Path) -> None:
    async with chatting(ScriptedClient(echo), store=Store(file)) as chat:
        await chat.say("one")
        await chat.say("/system Be terse.")
        with Store(file) as store:
            kept = store.last()
            assert kept is not None
            assert kept.system_prompt == "Be terse."
        await chat.say("/new")
        assert chat.session.system_prompt == ""
    async with chatting(ScriptedClient(echo), store=Store(file), resume=kept) as chat:
        assert chat.session.system_prompt == "Be terse."
        await chat.say("/system none")
        with Store(file) as store:
            assert store.conversation(kept.id).system_prompt == ""


async def test_the_pair_that_wrote_last_is_the_one_that_is_resumed_with(file: Path) -> None:
    async with chatting(ScriptedClient(echo), store=Store(file)) as chat:
        await chat.say("one")
        chat.session.adopt(replace(chat.session.launch, name="another-pair"))
        await chat.say("two")
    with Store(file) as store:
        kept = store.last()
        assert kept is not None
        assert kept.pair == "another-pair"


async def test_a_system_prompt_of_the_command_line_holds_for_the_resumed_conversation(file: Path) -> None:
    with Store(file) as store:
        kept = store.create(system_prompt="kept")
        store.send(kept.id, "one", after=None)
    for sources, expected in (({"system": "command line"}, "given"), ({"system": "settings file"}, "kept")):
        async with chatting(store=Store(file), resume=kept, system_prompt="given", sources=sources) as chat:
            assert chat.session.system_prompt == expected


async def test_the_context_that_is_shown_is_that_of_the_branch_that_is_shown(file: Path) -> None:
    async with chatting(ScriptedClient(echo), store=Store(file)) as chat:
        await chat.say("one two three")
        await focus(chat)
        await chat.pilot.press("e")
        chat.box.replace_all("one")
        await chat.pilot.press("enter")
        await chat.until(lambda: chat.idle and "so: one\n" in chat.text.replace("  ", "\n"))
        assert "1/8,192" in chat.status
        await focus(chat)
        await chat.pilot.press("p", "p", "h")
        await chat.until(lambda: "3/8,192" in chat.status)


async def test_a_conversation_in_which_nothing_was_said_is_not_exported(file: Path, tmp_path: Path) -> None:
    async with chatting(store=Store(file)) as chat:
        chat.screen.journal.keep_unsent("half a thought", now=True)
        await chat.say(f"/export {tmp_path / 'empty.md'}")
        assert chat.note == "This conversation is empty."
    assert not (tmp_path / "empty.md").exists()


# ---- what fails


async def test_a_history_that_fails_under_a_key_is_said_and_ends_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with chatting(store=Store(file)) as chat:
        await chat.say("one")
        await chat.pilot.press("ctrl+r")
        await chat.pilot.pause()

        def fails(*_: object) -> None:
            raise HistoryError("the [disk] is gone")

        monkeypatch.setattr(Store, "conversation", fails)
        await chat.pilot.press("f2")
        await chat.shows("The [disk] is gone")
        await chat.pilot.press("enter")
        await chat.shows("The [disk] is gone")
        monkeypatch.undo()
        await chat.pilot.press("escape")
        await chat.say("two")
        await chat.shows("two")


@pytest.mark.parametrize("line", ['vi "', "rm", "false", "no-such-editor", "/"])
def test_an_editor_that_fails_leaves_the_message_as_it_was(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISUAL", line)
    with pytest.raises(editor.EditorError, match="editor"):
        editor.edit("text")


def test_a_blank_visual_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISUAL", "  ")
    monkeypatch.setenv("EDITOR", "true -x")
    assert editor.command() == ["true", "-x"]


# ---- hands


async def test_copying_uses_the_systems_own_clipboard_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    monkeypatch.delenv("TMUX", raising=False)
    program, copied = tmp_path / "wl-copy", tmp_path / "copied"
    program.write_text(f"#!/bin/sh\ncat >{copied}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    async with chatting() as chat:
        said = clipboard.copy(chat.app, "zwölf\n")
        assert copied.read_text("utf-8") == chat.app.clipboard == "zwölf\n"
        assert "6 characters" in said
        assert "wl-copy" in said
        program.write_text("#!/bin/sh\nexit 1\n")
        assert "wl-copy" not in clipboard.copy(chat.app, "once more")
        assert chat.app.clipboard == "once more"


@pytest.mark.parametrize("typed", ["/foo-bar", "/foo2 x", "/Regenn", "/speculation_off"])
def test_what_looks_like_a_command_and_is_none_is_an_error(typed: str) -> None:
    with pytest.raises(CommandError, match=f"no command {typed.split()[0]}"):
        invocation(typed)


def test_a_command_may_be_written_in_capitals() -> None:
    found = invocation("/Help")
    assert found is not None
    assert found[0].name == "help"


@pytest.mark.parametrize("typed", ["/etc/hosts", "/tmp", "/24 is a netmask", "1/2", "/r/python is down?", "/foo.txt"])
def test_a_path_is_a_message(typed: str) -> None:
    assert invocation(typed) is None


async def test_a_question_names_the_keys_that_answer_it() -> None:
    async with chatting(keymap={"say_yes": "f7", "say_no": "f8"}) as chat:
        chat.app.push_screen(Question("Really?", "Do it", chat.screen.keymap))
        await chat.shows("F7 Do it", "F8 Leave it")


async def test_the_catalogue_is_read_once_while_a_pair_is_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []

    def installed() -> tuple[()]:
        reads.append(1)
        return ()

    monkeypatch.setattr(dock, "installed", installed)
    async with chatting() as chat:
        chat.box.focus()
        for _ in range(2):
            await chat.pilot.press(*"/model abc")
            chat.box.replace_all("")
            await chat.pilot.pause()
    assert len(reads) == 2
    assert [offer.text for offer in candidates("/model ", lambda: ())] == []


@pytest.mark.parametrize("size", [(40, 15), (30, 10), (20, 8), (80, 24), (300, 80)])
async def test_help_and_completions_can_be_read_in_every_size(size: tuple[int, int]) -> None:
    async with chatting(size=size) as chat:
        await chat.pilot.press("/")
        await chat.pilot.pause()
        assert "/help" in chat.text
        chat.box.replace_all("")
        await chat.pilot.press("f1")
        await chat.shows("Enter")
        lines = [line for line in chat.text.splitlines() if "Send the" in line]
        assert lines


# ---- two things at the same moment


async def test_a_message_sent_while_the_one_that_waited_begins_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    first, begins = threading.Event(), asyncio.Event()
    real = Transcript.begin

    async def slow(self: Transcript) -> None:
        begins.set()
        await asyncio.sleep(0.3)
        await real(self)

    async with chatting(ScriptedClient(until(first, "begun ", "and done"))) as chat:
        await chat.say("one", wait=False)
        await chat.shows("begun")
        await chat.say("two", wait=False)
        await chat.shows("Next: two")
        monkeypatch.setattr(Transcript, "begin", slow)
        chat.client.script = echo
        begins.clear()
        first.set()
        await chat.until(begins.is_set)
        assert not chat.idle
        await chat.say("three", wait=False)
        await chat.until(lambda: chat.idle and "so: three" in chat.text)
        said = [message.content for message in chat.session.messages]
        assert said == ["one", "begun and done", "two", "so: two", "three", "so: three"]
        assert [t.shown.text for t in chat.screen.transcript.turns] == said
