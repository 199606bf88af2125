"""The screen's smaller parts: panel of figures, origins, thoughts, editor, attachments, hints."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from textual import events
from textual._xterm_parser import XTermParser
from textual.content import Content

from specchat.engine.policy import Mode, Speculation
from specchat.engine.replies import Event, Finished, Message
from specchat.engine.rounds import Origin
from specchat.engine.stats import Figures
from specchat.engine.text import Piece
from specchat.session import Attachment
from specchat.tui import attach, editor, metrics, origins
from specchat.tui.actions import ACTIONS, Place
from specchat.tui.app import SpecchatApp
from specchat.tui.completion import candidates
from specchat.tui.screens.chat import ChatScreen
from specchat.tui.screens.conversations import ConversationsScreen
from specchat.tui.screens.race import RaceScreen
from specchat.tui.widgets.hints import Hints
from specchat.tui.widgets.transcript import Transcript, code_blocks
from specchat.worker import ram
from tests.scripted_client import INFO, ScriptedClient, generated, until, words
from tests.tui import HOSTILE, Chat, chatting

FIGURES = ScriptedClient().figures(40)


# ---- the panel


def test_the_panel_shows_theory_beside_what_happened() -> None:
    figures = replace(FIGURES, acceptance=0.75, expected_per_pass=3.05, ceiling=4.0)
    shown = metrics.rows(Speculation(Mode.DRAFT, 6), figures, INFO, metrics.Speeds(), "because", 30).plain
    for part in ("draft at depth 6", "75%", "3.05", "4.00", "144 MB", "78 MB", "because", "452 of 8,192"):
        assert part in shown
    assert "None" not in shown
    assert metrics.rows(Speculation(), Figures(), None, metrics.Speeds(), "", 30).plain.count("None") == 0


def test_the_sparkline_marks_where_the_drafter_changed() -> None:
    speeds = metrics.Speeds()
    for speed, drafter in ((10.0, "draft"), (20.0, "draft"), (5.0, "plain")):
        speeds.add(replace(FIGURES, tokens_per_second_now=speed, drafter=drafter))
    bars, marks = speeds.sparkline(20).plain.split("\n")
    assert (len(bars), bars[1], marks) == (3, "█", "  ╵")
    assert len(speeds.sparkline(2).plain.split("\n")[0]) == 2


async def test_f3_shows_and_hides_the_panel_where_there_is_room() -> None:
    async with chatting(size=(120, 40)) as chat:
        await chat.say("hi")
        await chat.pilot.press("f3")
        await chat.shows("Figures", "acceptance rate", "73%", "tokens a pass", "144 MB")
        await chat.pilot.press("f3")
        await chat.pilot.pause()
        assert "acceptance rate" not in chat.text
        await chat.pilot.press("f3")
        await chat.shows("acceptance rate")
        await chat.pilot.resize_terminal(70, 24)  # it would leave the conversation too little
        await chat.until(lambda: "acceptance rate" not in chat.text)
        await chat.pilot.press("f3")
        assert "80 columns" in chat.note
        await chat.pilot.resize_terminal(80, 40)
        await chat.shows("acceptance rate")


# ---- origins


def test_colouring_by_origin_keeps_the_text() -> None:
    pieces = [Piece(text, origin) for text, origin in zip((HOSTILE, "b", "c", "d"), Origin, strict=True)]
    coloured = origins.coloured([*pieces, Piece("thought", Origin.PLAIN, reasoning=True)])
    assert coloured.plain.endswith("bcd")
    assert "thought" not in coloured.plain
    assert "\x1b" not in coloured.plain
    assert len({str(span.style) for span in coloured.spans}) == 4


async def test_f4_colours_the_reply_also_while_it_runs() -> None:
    gate = threading.Event()
    async with chatting(ScriptedClient(until(gate, "**one** ", "two"))) as chat:
        await chat.say("hi", wait=False)
        await chat.shows("one")
        await chat.pilot.press("f4")
        await chat.shows("**one**", origins.legend().plain)
        gate.set()
        await chat.shows("**one** two")
        await chat.until(lambda: chat.idle)
        await chat.pilot.press("f4")
        await chat.until(lambda: "**one**" not in chat.text and "one two" in chat.text)


# ---- thoughts


def thinker(client: ScriptedClient, _: Sequence[Message]) -> Iterator[Event]:
    yield generated("I wonder about [this]", client.figures(1), reasoning=True)
    yield generated("The answer.", client.figures(2))
    yield Finished("end", client.figures(2))


async def test_thoughts_are_one_line_that_opens() -> None:
    async with chatting(ScriptedClient(thinker)) as chat:
        await chat.say("hi")
        await chat.shows("▸ thought · 4 words", "The answer.")
        assert "I wonder" not in chat.text
        chat.screen.query_one(Transcript).focus()
        await chat.pilot.press("space")
        await chat.shows("▾ thought", "I wonder about [this]")
        await chat.pilot.press("y")
        assert chat.app.clipboard == "The answer."
        assert chat.session.messages[-1].reasoning == "I wonder about [this]"


@pytest.mark.parametrize("how", ["click", "key"])
async def test_what_is_opened_at_the_end_stays_in_view(how: str) -> None:
    thoughts = " ".join(f"thought{number}" for number in range(600))

    def script(client: ScriptedClient, _: Sequence[Message]) -> Iterator[Event]:
        yield generated(thoughts, client.figures(1), reasoning=True)
        yield generated("The answer.\n\n" * 12, client.figures(2))
        yield Finished("end", client.figures(2))

    async with chatting(ScriptedClient(script), size=(80, 40)) as chat:
        await chat.say("hi")
        await chat.shows("▸ thought · 600 words")
        if how == "click":
            await chat.pilot.click(".head")
        else:
            await chat.pilot.press("tab", "space")
        await chat.shows("▾ thought", "thought0 thought1 ")
        await chat.pilot.pause(0.1)
        assert "▾ thought" in chat.text
        await chat.say("again")
        await chat.until(lambda: chat.screen.transcript.at_end)


async def test_thinking_is_switched_where_the_template_can() -> None:
    async with chatting() as chat:
        await chat.say("/think off")
        assert "no switch" in chat.note
    info = replace(INFO, can_toggle_thinking=True)
    async with chatting(ScriptedClient(loaded=info)) as chat:
        await chat.say("/think off")
        assert "Reasoning is off" in chat.note
        await chat.say("hi")
        assert chat.client.options[0].template_variables == (("enable_thinking", False),)


# ---- the editor


async def test_ctrl_g_opens_the_message_in_an_editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "editor.py"
    script.write_text("import sys; p = sys.argv[1]; t = open(p).read(); open(p, 'w').write(t.upper() + '!\\n')")
    monkeypatch.setenv("VISUAL", f"{sys.executable} {script}")
    async with chatting() as chat:

        @contextmanager
        def suspended() -> Iterator[None]:
            yield

        monkeypatch.setattr(chat.app, "suspend", suspended)
        await chat.type("shout")
        await chat.pilot.press("ctrl+g")
        assert chat.box.text == "SHOUT!"
        monkeypatch.setenv("VISUAL", "/no/such/editor")
        await chat.pilot.press("ctrl+g")
        assert "cannot be run" in chat.note
        assert chat.box.text == "SHOUT!"


async def test_what_comes_of_the_editor_is_gone_on_with_in_the_box(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "editor.py"
    script.write_text("import sys; open(sys.argv[1], 'w').write('from the edito')")
    monkeypatch.setenv("VISUAL", f"{sys.executable} {script}")
    async with chatting() as chat:
        monkeypatch.setattr(chat.app, "suspend", nullcontext)
        await chat.say("hi")
        chat.screen.set_focus(chat.screen.transcript)
        await chat.pilot.press("ctrl+g", "r")
        await chat.until(lambda: chat.box.text == "from the editor")
        assert chat.idle
        assert len(chat.client.asked) == 1


@pytest.mark.parametrize("before", ["", "tell me of a "])
async def test_a_slash_in_the_conversation_goes_to_the_box_with_what_follows(before: str) -> None:
    async with chatting() as chat:
        await chat.say("hi")
        await chat.type(before)
        chat.screen.set_focus(chat.screen.transcript)
        await chat.pilot.press("slash", "r", "e")
        await chat.until(lambda: chat.box.text == f"{before}/re")
        assert chat.box.has_focus
        assert chat.box.completing is not bool(before)
        assert len(chat.client.asked) == 1


def test_an_editor_that_fails_leaves_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISUAL", "false")
    with pytest.raises(editor.EditorError, match="status 1"):
        editor.edit("text")


# ---- attachments


def test_files_are_found_and_addresses_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "some notes.txt"
    file.write_text("content")
    assert attach.find("ask @someone or me@example.org") == ()
    (found,) = attach.find(f'see @"{file}" please')
    assert found.text == "content"
    with pytest.raises(attach.AttachError, match="There is no file"):
        attach.find(f"@{tmp_path}/nothing.txt")


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    binary, latin = tmp_path / "a.bin", tmp_path / "b.txt"
    binary.write_bytes(b"GGUF\0\0")
    latin.write_bytes(b"caf\xe9")
    with pytest.raises(attach.AttachError, match="not a text file"):
        attach.read(binary)
    with pytest.raises(attach.AttachError, match="UTF-8"):
        attach.read(latin)


def test_paths_are_completed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.txt").touch()
    (tmp_path / ".hidden").touch()
    offers = [offer.text for offer in candidates(f"look at @{tmp_path}/f")]
    assert offers == [f"look at @{tmp_path}/file.txt ", f"look at @{tmp_path}/folder/"]
    assert candidates(f"@{tmp_path}/zzz") == ()
    assert all(".hidden" not in offer.text for offer in candidates(f"@{tmp_path}/"))


@pytest.mark.parametrize("name", ["my notes.txt", "a folder/of mine/x.txt", "odd.", "plain.txt"])
def test_a_path_that_is_completed_is_found(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("content")
    text = f"look at @{tmp_path}/{name[0]}"
    for _ in name.split("/"):
        (offer,) = candidates(text)
        text = offer.text
    (found,) = attach.find(f"{text}and tell")
    assert found.text == "content"


def test_a_folder_and_a_huge_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with (tmp_path / "huge.txt").open("wb") as huge:
        huge.truncate(1 << 30)
    with pytest.raises(attach.AttachError, match=r"folder/ is a folder\.$"):
        attach.find(f"see @{tmp_path}/folder/")
    with pytest.raises(attach.AttachError, match=r"too large to attach \([\d,]+ bytes\)\.$"):
        attach.find(f"see @{tmp_path}/huge.txt")


@pytest.mark.parametrize("files", [("one",), ("one", "two")])
async def test_an_edited_message_has_its_files_once(tmp_path: Path, files: tuple[str, ...]) -> None:
    for name in files:
        (tmp_path / name).write_text(f"\tsay {name}\r\nor not\n")
    named = " ".join(f"@{tmp_path / name}" for name in files)
    async with chatting() as chat:
        await chat.say(f"What do they say? {named}")
        first = chat.client.asked[-1][-1].content
        await chat.say("/edit")
        await chat.until(lambda: chat.box.text)
        await chat.type(" Be brief.")
        await chat.pilot.press("enter")
        await chat.until(lambda: len(chat.client.asked) == 2 and chat.idle)
        assert chat.client.asked[-1][-1].content == f"{first} Be brief."
        (tmp_path / "one").write_text("say")  # a word of the message, and not the file that it holds
        assert [found.text for found in attach.find(f"{first}")][:1] == ["say"]


async def test_an_attached_file_goes_with_the_message(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("\n".join(f"line {number}" for number in range(40)))
    async with chatting() as chat:
        await chat.say(f"Sum up @{file}")
        sent = chat.client.asked[0][0].content
        assert sent.startswith("line 0")
        assert sent.endswith(f"Sum up @{file}")
        await chat.shows("more lines")
        await chat.until(lambda: "notes.txt (80 tokens)" in chat.note)
        await chat.say(f"And @{tmp_path}/missing.txt")
        assert "There is no file" in chat.note
        assert len(chat.client.asked) == 1
        assert "missing.txt" in chat.box.text


async def test_files_given_on_the_command_line_go_with_the_first_message() -> None:
    async with chatting(attachments=(Attachment("a.txt", "first file"),)) as chat:
        await chat.say("hi")
        await chat.say("again")
        assert chat.client.asked[1][0].content == "first file\n\nhi"
        assert chat.client.asked[1][-1].content == "again"


# ---- keys in a hurry


async def test_keys_are_carried_out_in_the_order_they_were_typed() -> None:
    """As a terminal delivers them after the screen was busy for a moment: many at once."""

    def rush(chat: Chat, *keys: str) -> None:
        for key in keys:
            chat.app.post_message(events.Key(key, key if len(key) == 1 else None))

    async with chatting() as chat:
        rush(chat, "a", "b", "backspace", "c", "ctrl+j", "d", "alt+enter", "e", "home", "f")
        await chat.until(lambda: chat.box.text == "ac\nd\nfe")
        rush(chat, "enter", "n", "e", "x", "t")
        await chat.until(lambda: chat.client.asked and chat.idle)
        assert [m.content for m in chat.client.asked[0]] == ["ac\nd\nfe"]
        assert chat.box.text == "next"
        rush(chat, "tab", "y")
        await chat.until(lambda: chat.app.clipboard == "Hello there.")
        assert chat.box.text == "next"


async def test_alt_enter_of_older_terminals_is_a_new_line() -> None:
    async with chatting():
        keys = [message.key for message in XTermParser().feed("a\x1b\rb") if isinstance(message, events.Key)]
        assert keys == ["a", "ctrl+j", "b"]


async def test_a_mapped_key_sends() -> None:
    async with chatting(keymap={"send": "ctrl+o"}) as chat:
        await chat.type("hi")
        await chat.pilot.press("enter")
        assert chat.client.asked == []
        await chat.pilot.press("ctrl+o")
        await chat.until(lambda: chat.client.asked)


# ---- the rest


def test_code_blocks_are_found() -> None:
    assert code_blocks("a\n```py\nx\n```\n~~~\ny\nz\n~~~\n`inline`") == ["x\n", "y\nz\n"]


async def test_the_plan_and_counts_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    info = replace(INFO, plan=("target on CPU", "draft on CPU"))
    async with chatting(ScriptedClient(loaded=info)) as chat:
        await chat.say("/plan")
        await chat.shows("target on CPU", "draft on CPU", "B of RAM are.")
        monkeypatch.setattr(ram, "available", lambda: ram.Room(3 << 30, 8 << 30))
        await chat.say("/plan")
        await chat.shows("now 3.0 GiB of RAM are.")
        await chat.say("/tokens one two three")
        await chat.until(lambda: "3 tokens" in chat.note)
        await chat.say("hi")
        await chat.say("/tokens")
        assert "of 8,192 tokens" in chat.note
        await chat.say("/unload")
        assert "unloaded" in chat.note
        await chat.say("hello")
        assert chat.client.loads == 2


async def test_hints_follow_the_focus() -> None:
    async with chatting(ScriptedClient(words("A reply."))) as chat:
        await chat.say("hi")
        assert "F2 Speculation off" in chat.text
        await chat.pilot.press("tab")
        await chat.shows("y Copy", "e Edit", "r Again", "Esc To the box")
        await chat.pilot.press("escape")
        await chat.shows("F2 Speculation off")
        assert chat.app.focused is chat.box


WHERE = {
    Place.APP: SpecchatApp,
    Place.SCREEN: ChatScreen,
    Place.CONVERSATION: Transcript,
    Place.LIST: ConversationsScreen,
    Place.RACE: RaceScreen,
}


def _was_done(done: list[str], link: str) -> bool:
    return bool(done) and done[-1] in link


@pytest.mark.parametrize(("opened", "fewest"), [("", 5), ("tab", 8), ("ctrl+r", 5), ("/race hi", 1)])
async def test_every_hint_can_be_clicked(opened: str, fewest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    script = words("A reply that takes its time.", delay=0.5 if opened.startswith("/") else 0)
    async with chatting(ScriptedClient(script), size=(120, 30)) as chat:
        if opened.startswith("/"):
            await chat.say(opened, wait=False)
            await chat.until(lambda: isinstance(chat.app.screen, RaceScreen))
        else:
            await chat.say("hi")
            await chat.pilot.press(*opened.split())
        await chat.until(lambda: chat.app.screen.query(Hints).first().region.width)
        await chat.pilot.pause(0.1)
        done: list[str] = []
        for action in ACTIONS:
            if action.place in WHERE and action.hint is not None:
                name = f"action_{action.name}"
                monkeypatch.setattr(WHERE[action.place], name, staticmethod(partial(done.append, action.name)))
        line = chat.app.screen.query(Hints).first().region
        links = {x: chat.app.screen.get_style_at(x, line.y).meta.get("@click") for x in range(line.x, line.right)}
        ends = {link: x for x, link in links.items() if link}
        assert len(ends) >= fewest
        for link, x in ends.items():
            await chat.pilot.click(offset=(x, line.y))
            await chat.until(partial(_was_done, done, link))
        monkeypatch.undo()


async def test_a_resumed_or_long_question_is_folded() -> None:
    async with chatting() as chat:
        await chat.say("\n".join(f"line {number}" for number in range(30)))
        await chat.shows("▸ 18 more lines")
        assert "line 20" not in chat.text
        chat.screen.query_one(Transcript).focus()
        await chat.pilot.press("p", "p", "space")
        await chat.until(lambda: "▸" not in chat.text)


async def test_the_legend_is_one_line_in_a_small_terminal_and_true_of_every_drafter() -> None:
    async with chatting(size=(80, 24)) as chat:
        await chat.pilot.press("f4")
        await chat.shows(origins.legend().plain)
    assert "draft" not in origins.legend().plain


def test_every_style_of_origins_is_named() -> None:
    assert isinstance(origins.legend(), Content)
    assert set(origins.STYLES) == set(Origin)


async def test_the_palette_finds_slash_commands_too() -> None:
    async with chatting() as chat:
        await chat.type("half a message")
        await chat.pilot.press("ctrl+p")
        await chat.pilot.press(*"temp")
        await chat.shows("/temp")
        await chat.pilot.press("enter")
        await chat.until(lambda: "0.8" in chat.note)
        assert chat.box.text == "half a message"
