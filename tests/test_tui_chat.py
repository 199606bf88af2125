"""The chat screen, driven by keys, on a real session with a scripted client."""

from __future__ import annotations

import asyncio
import re
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from textual import events
from textual.widget import Widget
from textual.widgets import Markdown

from specchat.engine.policy import Mode, Speculation
from specchat.engine.replies import Event, Finished, Message, Notice, Reading
from specchat.engine.stats import Figures
from specchat.tui.app import SpecchatApp
from specchat.tui.screens.chat import ChatScreen
from specchat.tui.widgets.transcript import Transcript
from specchat.tui.widgets.turns import ReplyTurn, UserTurn
from specchat.worker.client import EngineDied, EngineError, TooLong
from specchat.worker.protocol import Loading
from tests.scripted_client import INFO, ScriptedClient, generated, session, until, words
from tests.tui import HOSTILE, chatting, picture

LONG = "\n\n".join(f"Paragraph {number} of a long reply." for number in range(24))


async def test_a_question_gets_a_streamed_reply_and_a_quiet_line_of_figures() -> None:
    async with chatting(ScriptedClient(words("**Hello** there.\n\n- one\n- two"))) as chat:
        await chat.say("hi")
        await chat.shows("hi", "Hello there.", "• one", "draft · ", "52.1 tok/s", "73% accepted")
        assert "**" not in chat.text
        assert [m.content for m in chat.session.messages] == ["hi", "**Hello** there.\n\n- one\n- two"]
        assert chat.box.text == ""


async def test_the_finished_reply_is_what_parsing_it_whole_gives() -> None:
    source = "1. a\n\n   b\n2. c\n\n[x]: http://e.org\n\nsee [x]\n\n- l\n\n- m\u2028n"
    async with chatting(ScriptedClient(words(source))) as chat:
        await chat.say("hi")
        streamed = chat.screen.query_one(Markdown)
        whole = Markdown(streamed.source, parser_factory=streamed._parser_factory)
        await chat.screen.query_one(Transcript).add(whole)
        await chat.pilot.pause()

        def shape(document: Markdown) -> list[tuple[str, str]]:
            return [(type(w).__name__, str(getattr(w, "_content", ""))) for w in document.query("*")]

        assert shape(streamed) == shape(whole)
        assert "\u2028" not in streamed.source


async def test_the_status_line_is_live_while_tokens_arrive() -> None:
    gate = threading.Event()
    async with chatting(ScriptedClient(until(gate, "some ", "more"))) as chat:
        await chat.say("hi", wait=False)
        await chat.until(lambda: "48.7 tok/s" in chat.status)
        assert chat.status.startswith("● draft")
        assert "1.62× plain" in chat.status
        gate.set()
        await chat.until(lambda: chat.idle)
        assert chat.status.startswith("○ draft")
        assert "52.1 tok/s" in chat.status


@pytest.mark.parametrize("key", ["f2", "ctrl+t"])
async def test_speculation_is_switched_in_the_middle_of_a_reply(key: str) -> None:
    gate = threading.Event()
    async with chatting(ScriptedClient(until(gate, "some ", "more"))) as chat:
        await chat.say("hi", wait=False)
        await chat.until(lambda: "● draft" in chat.status)
        await chat.pilot.press(key)
        assert chat.client.speculation == Speculation(Mode.OFF)
        assert chat.status.startswith("● plain (off)")
        assert "Speculation on" in chat.text
        await chat.pilot.press(key)
        assert chat.client.speculation == Speculation(Mode.AUTO)
        gate.set()
        await chat.until(lambda: chat.idle)
        assert chat.status.startswith("○ draft")


async def test_toggling_comes_back_to_what_was_chosen() -> None:
    async with chatting() as chat:
        await chat.say("/speculation ngram")
        await chat.say("/depth 5")
        await chat.pilot.press("f2", "f2")
        assert chat.client.speculation == Speculation(Mode.NGRAM, 5)


async def test_esc_stops_the_reply_and_keeps_what_came() -> None:
    async with chatting(ScriptedClient(until(threading.Event(), "kept ", "never"))) as chat:
        await chat.say("hi", wait=False)
        await chat.shows("kept", "Esc Stop")
        await chat.pilot.press("escape")
        await chat.until(lambda: chat.idle)
        await chat.shows("kept", "stopped · ")
        assert chat.session.messages[-1].content == "kept "
        assert "Esc Stop" not in chat.text


async def test_a_message_stopped_before_anything_came_comes_back_to_the_box() -> None:
    async with chatting(ScriptedClient(until(threading.Event(), "", "never"))) as chat:
        await chat.say("a question of some length", wait=False)
        await chat.shows("Esc Stop")
        await chat.pilot.press("escape")
        await chat.until(lambda: chat.idle)
        assert not chat.session.messages
        assert chat.box.text == "a question of some length"
        assert chat.screen.query("UserTurn.-unsent")
        chat.client.script = words("An answer.")
        await chat.pilot.press("enter")
        await chat.shows("An answer.")
        assert [message.role for message in chat.session.messages] == ["user", "assistant"]


async def test_a_draft_model_that_is_not_there_is_said_when_it_is_asked_for() -> None:
    client = ScriptedClient(loaded=replace(INFO, draft=None))
    async with chatting(client) as chat:
        assert "no draft model" not in chat.text
        await chat.say("/speculation draft")
        await chat.shows("there is no draft model here")


async def test_a_new_line_is_typed_without_sending_and_the_box_grows() -> None:
    async with chatting() as chat:
        await chat.type("a")
        height = chat.box.size.height
        for key in ("ctrl+j", "shift+enter", "alt+enter"):
            await chat.pilot.press(key, "b")
        assert chat.box.text == "a\nb\nb\nb"
        await chat.pilot.pause()
        assert chat.box.size.height > height
        assert chat.client.asked == []
        for _ in range(40):
            await chat.pilot.press("ctrl+j")
        await chat.pilot.pause()
        assert chat.box.size.height <= 10


async def test_an_empty_message_is_not_sent() -> None:
    async with chatting() as chat:
        await chat.say("  \n ")
        assert chat.client.asked == []


async def test_loading_shows_progress_and_a_message_waits_for_it() -> None:
    gate = threading.Event()
    client = ScriptedClient(load_gate=gate, loading=[Loading(1, "loading the target", 0.43)])
    async with chatting(client, loaded=False) as chat:
        await chat.shows("loading the target", "43%")
        await chat.say("hi", wait=False)
        await chat.shows("Next: hi")
        assert client.asked == []
        gate.set()
        await chat.shows("Hello there.")
        assert [m.content for m in client.asked[0]] == ["hi"]
        assert "Next:" not in chat.text


async def test_reading_a_long_prompt_shows_progress() -> None:
    gate = threading.Event()

    def script(client: ScriptedClient, _: Sequence[Message]) -> Iterator[Event]:
        yield Reading(1536, 6200, 12)
        gate.wait(10)
        yield from words("Done.")(client, ())

    async with chatting(ScriptedClient(script)) as chat:
        await chat.say("hi", wait=False)
        await chat.shows("reading 1,536 of 6,200 tokens", "25%", "12 already read")
        gate.set()
        await chat.shows("Done.")
        assert "reading" not in chat.text


async def test_a_message_sent_while_a_reply_runs_waits_its_turn_and_can_be_taken_back() -> None:
    gate = threading.Event()
    async with chatting(ScriptedClient(until(gate, "one ", "two"))) as chat:
        await chat.say("first", wait=False)
        await chat.shows("one")
        await chat.say("second", wait=False)
        await chat.shows("Next: second")
        await chat.say("third", wait=False)
        assert "waiting already" in chat.note
        assert chat.box.text == "third"
        chat.box.clear()
        await chat.pilot.press("up")
        assert chat.box.text == "second"
        assert "Next:" not in chat.text
        await chat.pilot.press("enter")
        gate.set()
        await chat.until(lambda: len(chat.client.asked) == 2 and chat.idle)
        assert [m.content for m in chat.session.messages][::2] == ["first", "second"]


async def test_notices_of_the_engine_are_shown() -> None:
    def script(client: ScriptedClient, _: Sequence[Message]) -> Iterator[Event]:
        yield Notice("This model has no template: ChatML is used.")
        yield from words("Hello.")(client, ())

    async with chatting(ScriptedClient(script)) as chat:
        await chat.say("hi")
        await chat.shows("This model has no template: ChatML is used.")


async def test_the_reason_for_plain_decoding_is_shown() -> None:
    client = ScriptedClient(reason="the draft costs more than it saves here (0.87×)")
    async with chatting(client) as chat:
        await chat.say("/speculation ngram")
        plain = Figures(drafter="plain", passes=1, reason=client.reason)
        client.script = lambda *_: iter((generated("Hello.", plain), Finished("end", plain)))
        await chat.say("hi")
        await chat.shows("the draft costs more than it saves here (0.87×)", "plain (not n-gram)")


# ---- commands


async def test_an_unknown_command_is_an_error_in_place_and_nothing_is_lost() -> None:
    async with chatting() as chat:
        await chat.say("/foo bar")
        assert "There is no command /foo" in chat.note
        assert chat.box.text == "/foo bar"
        assert chat.client.asked == []
        await chat.pilot.press("backspace")
        assert chat.note == ""


async def test_a_path_is_a_message() -> None:
    async with chatting() as chat:
        await chat.say("/etc/hosts please")
        assert [m.content for m in chat.client.asked[0]] == ["/etc/hosts please"]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("/speculation", "set to auto"),
        ("/speculation warp", "choose one of auto, draft, ngram, off"),
        ("/depth", "auto"),
        ("/depth 0", "from 1 to 64"),
        ("/depth x", "from 1 to 64"),
        ("/temp", "0.8"),
        ("/temp -1", "from 0 to 10"),
        ("/temp nan", "from 0 to 10"),
        ("/system", "No system prompt"),
        ("/new x", "nothing after it"),
    ],
)
async def test_commands_answer_in_place(command: str, said: str) -> None:
    async with chatting() as chat:
        await chat.say(command)
        assert said in chat.note
        assert chat.client.asked == []


async def test_commands_change_what_the_next_reply_is_asked_with() -> None:
    async with chatting() as chat:
        await chat.say("/temp 0")
        await chat.say("/system Answer in Latin.")
        await chat.say("hi")
        assert chat.client.options[0].sampling.temperature == 0
        assert chat.client.asked[0][0] == Message("system", "Answer in Latin.")
        await chat.say("/system none")
        await chat.say("again")
        assert chat.client.asked[1][0].role == "user"


async def test_new_begins_an_empty_conversation() -> None:
    async with chatting() as chat:
        await chat.say("hi")
        await chat.say("/new")
        await chat.shows("This is the demo pair")
        assert not chat.screen.query(UserTurn)
        await chat.say("again")
        assert [m.content for m in chat.client.asked[1]] == ["again"]


async def test_completion_is_driven_from_the_box() -> None:
    async with chatting() as chat:
        await chat.pilot.press("slash", "s")
        await chat.shows("/speculation [auto|draft|ngram|off]", "/system")
        await chat.pilot.press("down", "up", "tab")
        assert chat.box.text == "/speculation "
        await chat.pilot.press("n")
        await chat.pilot.press("enter")
        assert chat.box.text == "/speculation ngram"
        await chat.pilot.press("enter")
        assert chat.client.speculation.mode is Mode.NGRAM
        assert chat.box.text == ""
        await chat.pilot.press("slash", "escape")
        await chat.pilot.pause()
        assert not chat.screen.query_one("#completions").display
        assert chat.box.text == "/"


async def test_up_and_down_walk_through_earlier_messages() -> None:
    async with chatting() as chat:
        await chat.say("one")
        await chat.say("two")
        await chat.type("unsent")
        await chat.pilot.press("up")
        assert chat.box.text == "two"
        await chat.pilot.press("up")
        assert chat.box.text == "one"
        await chat.pilot.press("down", "down")
        assert chat.box.text == "unsent"
        chat.box.replace_all("first line\nsecond line")
        await chat.pilot.press("up")
        assert chat.box.text == "first line\nsecond line"
        assert chat.box.cursor_location[0] == 0


async def test_help_lists_every_key_and_command() -> None:
    async with chatting(size=(110, 140)) as chat:
        await chat.pilot.press("f1")
        await chat.shows("Ctrl+J  Shift+Enter  Alt+Enter", "F2  Ctrl+T", "/speculation [auto|draft|ngram|off]", "/exit")
        await chat.pilot.press("escape")
        await chat.pilot.pause()
        assert "Keys and commands" not in chat.text


async def test_keys_can_be_mapped_anew() -> None:
    async with chatting(keymap={"toggle_speculation": "f12"}) as chat:
        await chat.shows("F12 Speculation off")
        await chat.pilot.press("f2")
        assert chat.session.speculation == Speculation(Mode.AUTO)
        await chat.pilot.press("f12")
        assert chat.session.speculation == Speculation(Mode.OFF)


# ---- the empty chat


async def test_the_demo_says_what_it_is_and_offers_two_prompts_at_a_key_each() -> None:
    async with chatting() as chat:
        await chat.shows("demo pair", "cannot pay on a CPU", "F8", "F9", "type /pull")
        await chat.pilot.press("f8")
        await chat.until(lambda: chat.client.asked and chat.idle)
        assert "Correct the mistakes" in chat.client.asked[0][0].content
        assert chat.client.speculation.mode is Mode.NGRAM
        await chat.pilot.press("f9")
        await chat.shows("for an empty chat: Ctrl+N starts one")
        assert len(chat.client.asked) == 1


@pytest.mark.parametrize("change", ["f2", "/speculation auto"])
async def test_what_was_said_of_an_examples_speculation_is_gone_once_that_is_another(change: str) -> None:
    async with chatting() as chat:
        await chat.shows("F9")
        await chat.pilot.press("f9")
        await chat.until(lambda: "Speculation is set to plain for this example" in chat.note)
        await chat.until(lambda: chat.client.asked and chat.idle)
        if change == "f2":
            await chat.pilot.press("f2")
        else:
            await chat.say(change)
        await chat.until(lambda: "for this example" not in chat.note)
        await chat.pilot.press("f4")
        await chat.until(lambda: "proposed and accepted" in chat.note)
        await chat.pilot.press("f2")
        await chat.pilot.pause()
        assert "proposed and accepted" in chat.note  # that is still as it was said


async def test_another_pair_introduces_itself() -> None:
    async with chatting(is_demo=False, name="qwen3-8b") as chat:
        await chat.shows("qwen3-8b", "SmolLM2 135M Instruct writes", "proposes")
        assert "demo" not in chat.text
        await chat.pilot.press("f8")
        await chat.shows("/model demo loads it")
        assert chat.client.asked == []


# ---- what goes wrong


async def test_a_message_too_long_for_the_context_has_the_chats_remedy() -> None:
    def refuse(*_: object) -> Iterator[Event]:
        raise TooLong("this message alone has 9,000 tokens and the context 8,192: shorten it or ask for a longer one")
        yield

    async with chatting(ScriptedClient(refuse), size=(140, 30)) as chat:
        await chat.say("much")
        await chat.shows("no reply", "shorten it or ask for a longer one with /set", "ctx N.")
        assert "interrupted" not in chat.text
        assert "-c" not in chat.text
        assert chat.box.text == "much"


def died(after: str) -> Any:
    def script(client: ScriptedClient, _: Sequence[Message]) -> Iterator[Event]:
        if after:
            yield generated(after, client.figures(3))
        client.die()
        raise EngineDied("The engine was killed; its log is /logs/engine.log.", Path("/logs/engine.log"), True)

    return script


async def test_the_engines_death_keeps_the_partial_reply_and_the_next_message_restarts_it() -> None:
    async with chatting(ScriptedClient(died("partial "))) as chat:
        await chat.say("hi")
        await chat.shows("partial", "interrupted · ", "The engine was killed; its log is /logs/engine.log.")
        assert chat.session.messages[-1].content == "partial "
        chat.client.script = words("Back again.")
        await chat.say("go on")
        await chat.shows("partial", "Back again.")
        assert chat.client.loads == 2


async def test_a_death_while_nobody_waits_is_said_and_the_next_message_restarts_the_engine() -> None:
    async with chatting() as chat:
        await chat.say("Once")
        chat.client.die()
        chat.client.on_death(EngineDied("it ended; its log is engine.log", Path("engine.log"), True))
        await chat.shows("It ended; its log is engine.log", "models unloaded")
        await chat.say("Twice")
        assert chat.client.loads == 2
        assert [message.content for message in chat.session.messages][2] == "Twice"


async def test_a_message_that_got_no_answer_comes_back_to_the_box() -> None:
    async with chatting(ScriptedClient(died(""))) as chat:
        await chat.say("precious words")
        await chat.shows("The engine was killed")
        assert chat.box.text == "precious words"
        assert not chat.session.messages
        chat.client.script = words("Back.")
        await chat.pilot.press("enter")
        await chat.shows("Back.")
        assert "The engine was killed" not in chat.text
        assert len(chat.screen.query(UserTurn)) == 1


async def test_a_failed_load_is_explained_and_tried_again_by_the_next_message() -> None:
    client = ScriptedClient(loading=[EngineError("target.gguf is not a GGUF file.")])
    async with chatting(client) as chat:
        await chat.shows("target.gguf is not a GGUF file.")
        client.loading = ()
        await chat.say("hi")
        await chat.shows("Hello there.")
        assert "not a GGUF" not in chat.text


async def test_a_bug_in_the_session_is_shown_not_raised() -> None:
    def script(client: ScriptedClient, _: Sequence[Message]) -> Iterator[Event]:
        del client
        raise ZeroDivisionError(HOSTILE)
        yield  # pragma: no cover

    async with chatting(ScriptedClient(script)) as chat:
        await chat.say("hi")
        await chat.shows("Something went wrong inside specchat: ZeroDivisionError")
        await chat.say("still alive?", wait=False)


async def test_hostile_text_is_shown_as_text_in_every_place() -> None:
    def script(client: ScriptedClient, _: Sequence[Message]) -> Iterator[Event]:
        yield Notice(HOSTILE)
        for piece in HOSTILE:
            yield generated(piece, client.figures(2))
        yield generated(f"\n\n```{HOSTILE}\n{HOSTILE}\n```\n\n| {HOSTILE} |\n|---|\n| {HOSTILE} |", client.figures(3))
        client.die()
        raise EngineDied(HOSTILE, Path(HOSTILE.replace("\x00", "")), False)

    client = ScriptedClient(script, reason=HOSTILE)
    client.loading = [Loading(1, HOSTILE, 0.5)]
    async with chatting(client, size=(120, 60), is_demo=False, name=HOSTILE) as chat:
        await chat.say("/speculation draft")
        await chat.say(f"/system {HOSTILE}")
        await chat.say("/system")
        await chat.say(f"/speculation {HOSTILE}")
        chat.box.clear()
        await chat.say(HOSTILE)
        await chat.say(f"/{HOSTILE}")
        chat.box.post_message(events.Paste(HOSTILE))
        await chat.pilot.pause()
        text = chat.text
        assert "[/mnt/data/models] [b + [red]x" in text
        assert "<think> List<int>" in text
        assert not [ch for ch in text if ch != "\n" and (ch < " " or "\x7f" <= ch <= "\x9f")]
        assert chat.app.is_running


async def test_a_paste_brings_no_control_characters() -> None:
    async with chatting() as chat:
        chat.box.post_message(events.Paste("a\x1b[31mb\r\nc\x00\td"))
        await chat.pilot.pause()
        assert chat.box.text == "ab\nc\td"


# ---- scrolling


async def test_the_view_follows_the_end_unless_the_reader_scrolled_up() -> None:
    gate = threading.Event()
    async with chatting(ScriptedClient(until(gate, LONG, "\n\n" + LONG)), size=(80, 24)) as chat:
        transcript = chat.screen.query_one(Transcript)
        await chat.say("hi", wait=False)
        await chat.until(lambda: transcript.max_scroll_y > 10 and transcript.at_end)
        await chat.pilot.press("pageup")
        await chat.pilot.pause(0.3)
        before = transcript.scroll_offset.y
        gate.set()
        await chat.until(lambda: chat.idle)
        assert abs(transcript.scroll_offset.y - before) <= 1
        await chat.pilot.press("ctrl+end")
        await chat.until(lambda: transcript.at_end)
        await chat.pilot.press("pageup")
        await chat.pilot.pause(0.3)
        chat.client.script = words(LONG)
        await chat.say("again")
        await chat.until(lambda: transcript.at_end)


async def test_a_short_conversation_starts_at_the_top() -> None:
    async with chatting() as chat:
        await chat.say("hi")
        assert "hi" in "\n".join(chat.text.splitlines()[:3])


# ---- leaving


async def test_ctrl_c_clears_then_stops_then_quits_on_a_second_press() -> None:
    async with chatting(ScriptedClient(until(threading.Event(), "one ", "two"))) as chat:
        await chat.say("hi", wait=False)
        await chat.shows("one")
        await chat.type("something")
        await chat.pilot.press("ctrl+c")
        assert chat.box.text == ""
        assert not chat.idle
        await chat.pilot.press("ctrl+z")
        assert chat.box.text == "something"
        await chat.pilot.press("ctrl+c", "ctrl+c")
        await chat.until(lambda: chat.idle)
        assert chat.session.messages[-1].content == "one "
        await chat.pilot.press("ctrl+c")
        assert "again to quit" in chat.note
        assert chat.app.is_running
        await chat.pilot.press("ctrl+c")
        await chat.until(lambda: not chat.app.is_running)


async def test_ctrl_c_before_and_after_writing_does_not_quit() -> None:
    async with chatting() as chat:
        await chat.pilot.press("ctrl+c")
        assert "again to quit" in chat.note
        await chat.type("something")
        await chat.pilot.press("ctrl+c", "ctrl+c")
        await chat.until(lambda: "again to quit" in chat.note)
        await chat.pilot.pause(0.1)
        assert chat.app.is_running
        assert chat.app.return_code is None


async def test_ctrl_c_copies_a_selection_first() -> None:
    async with chatting() as chat:
        await chat.type("word")
        chat.box.select_all()
        await chat.pilot.press("ctrl+c")
        assert chat.app.clipboard == "word"
        assert chat.box.text == "word"
        assert "Copied 4 characters" in chat.note


async def test_ctrl_d_deletes_forward_and_quits_on_an_empty_box() -> None:
    async with chatting() as chat:
        await chat.type("ab")
        await chat.pilot.press("home", "ctrl+d")
        assert chat.box.text == "b"
        await chat.pilot.press("ctrl+d", "ctrl+d")
        await chat.until(lambda: not chat.app.is_running)


@pytest.mark.parametrize("way", ["ctrl+q", "/exit"])
async def test_quitting_in_the_middle_of_a_reply_leaves_no_thread_behind(way: str) -> None:
    async with chatting(ScriptedClient(words(LONG, delay=0.005))) as chat:
        await chat.say("hi", wait=False)
        await chat.shows("Paragraph 2")
        if way == "ctrl+q":
            await chat.pilot.press(way)
        else:
            await chat.say(way, wait=False)
        await chat.until(lambda: not chat.app.is_running)
        await chat.until(lambda: not [t for t in threading.enumerate() if t.name == "reply"])


# ---- looks


@pytest.mark.parametrize("early", [True, False])
async def test_a_signal_ends_it_at_any_moment_and_whatever_fails(early: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    app = SpecchatApp(session(ScriptedClient()))
    compose = ChatScreen.compose

    def end_while_composing(screen: ChatScreen) -> Iterator[Widget]:
        app._end_by_signal(signal.SIGTERM)
        yield from compose(screen)

    async def fail(_: ChatScreen) -> None:
        raise RuntimeError

    if early:
        monkeypatch.setattr(ChatScreen, "compose", end_while_composing)
    else:
        monkeypatch.setattr(ChatScreen, "wind_down", fail)
        asyncio.get_running_loop().call_later(0.5, app._end_by_signal, signal.SIGTERM)
    await asyncio.wait_for(app.run_async(headless=True), 10)
    assert app.return_code == 128 + signal.SIGTERM


@pytest.mark.parametrize("size", [(200, 50), (100, 30), (80, 24), (60, 20), (40, 12), (20, 8)])
@pytest.mark.parametrize("theme", ["textual-dark", "textual-light"])
async def test_every_line_fits_at_every_size(size: tuple[int, int], theme: str) -> None:
    async with chatting(ScriptedClient(words("Hello " * 50)), size=size, theme=theme) as chat:
        await chat.say("hi")
        lines = picture(chat.app).splitlines()
        assert len(lines) <= size[1]
        assert "○ draft" in chat.status
        assert all(len(part.strip()) > 1 for part in chat.status.split(" · "))
        strips = chat.screen._compositor.render_strips(chat.app.size)
        assert {strip.cell_length for strip in strips} == {size[0]}


async def test_it_runs_without_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with chatting() as chat:
        assert chat.app.no_color
        await chat.say("hi")
        await chat.shows("Hello there.")


async def test_an_unknown_theme_is_no_obstacle() -> None:
    app = SpecchatApp(session(ScriptedClient()), "no-such-theme")
    async with app.run_test() as pilot:
        await pilot.pause()
        assert app.theme == "textual-dark"


async def test_the_engines_notices_and_obstacles_are_said_once() -> None:
    info = replace(INFO, draft=None, draft_obstacle="the draft's vocabulary differs", notices=("Using ChatML.",))
    async with chatting(ScriptedClient(loaded=info), is_demo=False, name="x") as chat:
        await chat.shows("Using ChatML.", "the draft's vocabulary differs", "alone")


async def test_a_reply_without_text_says_why_it_ended() -> None:
    def script(client: ScriptedClient, _: Sequence[Message]) -> Iterator[Event]:
        yield Finished("length", client.figures(1))

    async with chatting(ScriptedClient(script)) as chat:
        await chat.say("hi")
        await chat.shows("reached the token limit")
        assert len(chat.screen.query(ReplyTurn)) == 1


async def test_a_sequence_split_over_tokens_never_shows() -> None:
    gate = threading.Event()
    async with chatting(ScriptedClient(until(gate, "see \x1b[3", "1mred"))) as chat:
        await chat.say("hi", wait=False)
        await chat.shows("see")
        assert "[3" not in chat.text
        await chat.pilot.press("f4")
        await chat.pilot.pause(0.2)
        assert "[3" not in chat.text
        gate.set()
        await chat.shows("see red")
        await chat.until(lambda: chat.idle)
        await chat.shows("see red")


WRONG: Final = (
    "/nonsense",
    "/theme none",
    "/speculation none",
    "/model none",
    "/set none 1",
    "/set temperature none",
    "/system @none.txt",
    "/attach none.txt",
    "/race",
    "/continue",
    "/edit",
    "/pull none",
    "/export no/such/folder/file.md",
    "read @./none.txt",
)


@pytest.mark.parametrize("typed", WRONG)
async def test_what_is_wrong_is_said_in_a_sentence(typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with chatting(size=(250, 40)) as chat:
        await chat.say(typed)
        await chat.until(lambda: chat.note and not chat.note.endswith("…"))
        assert re.fullmatch(r".*[^.…!?][.!?]", chat.note)
