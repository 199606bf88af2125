"""Long pastes: one line in the box, whole everywhere else."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual import events
from textual.content import Content

from specchat.history import Store
from specchat.tui.folds import Folds
from specchat.tui.widgets.turns import UserTurn
from specchat.tui.wrapping import wrapped
from tests.scripted_client import ScriptedClient, until
from tests.tui import chatting

LONG = "\n".join(f"line {n} of it" for n in range(240))


@given(st.lists(st.text(max_size=40), min_size=1, max_size=5), st.text(max_size=20))
def test_folding_and_expanding_are_inverse(pastes: list[str], between: str) -> None:
    folds = Folds()
    folded = between.join(map(folds.fold, pastes))
    assert folds.expand(folded) == between.join(pastes)
    assert "\n" not in folds.fold(pastes[0])


@given(st.lists(st.text("ab\n[]{}", max_size=40), max_size=5), st.text("ab\n[]{}", max_size=20))
def test_what_is_kept_is_restored_as_it_was(pastes: list[str], between: str) -> None:
    before, after = Folds(), Folds()
    folded = between.join(map(before.fold, pastes)) + between
    kept = before.marked(folded)
    assert after.restore(kept) == folded
    assert after.marked(folded) == kept
    assert after.expand(folded) == before.expand(folded)


def test_a_stand_in_of_nothing_is_text() -> None:
    text = "[pasted 7: 2 lines, 30 characters]"
    assert Folds().expand(text) == text
    assert Folds().around(text, 5) is None
    assert Folds().marked(text) == Folds().restore(text) == text


@given(st.text("ab \n漢", max_size=300), st.integers(2, 30))
def test_lines_are_counted_as_they_are_shown(text: str, width: int) -> None:
    lines = list(wrapped(text, width))
    assert "".join(lines) == text
    if text and not text.endswith("\n"):  # a box shows an empty line then
        assert len(lines) == len(Content(text).wrap(width))


@pytest.mark.parametrize("ends", ["", "\n", "  \n\n"])
async def test_a_paste_that_was_sent_comes_back_folded(ends: str) -> None:
    gate = threading.Event()
    async with chatting(ScriptedClient(until(gate, "begun ", "and done"))) as chat:
        await chat.say("one", wait=False)
        await chat.shows("begun")
        chat.app.post_message(events.Paste(f"{ends}{LONG}{ends}"))
        await chat.until(lambda: "[pasted" in chat.box.text)
        await chat.pilot.press("enter")
        await chat.shows("Next: line 0")
        assert chat.screen.dock.kept == f"\x02{LONG}\x03"
        await chat.pilot.press("up")
        await chat.until(lambda: "[pasted" in chat.box.text)
        assert chat.box.whole == LONG
        gate.set()
        await chat.pilot.press("enter")
        await chat.until(lambda: chat.idle and len(chat.client.asked) == 2)
        assert chat.client.asked[-1][-1].content == LONG
        await chat.pilot.press("up")
        await chat.until(lambda: "[pasted" in chat.box.text)


@pytest.mark.parametrize("text", ["line\n" * 30, "word " * 400, "x" * 2000, "漢" * 1000], ids=lambda text: text[:5])
async def test_what_takes_many_lines_is_folded_however_it_is_written(text: str) -> None:
    async with chatting() as chat:
        await chat.type(text)
        assert chat.box.text.startswith("[pasted 1: ")
        await chat.pilot.press("enter")
        await chat.until(lambda: chat.client.asked and chat.idle)
        await chat.shows("▸ ", "more lines")
        turn = chat.screen.query_one(UserTurn)
        folded = turn.size.height
        await chat.pilot.resize_terminal(60, 30)  # it takes more lines here
        await chat.shows("▸ ", "more lines")
        assert turn.size.height == folded
        turn.toggle()
        await chat.until(lambda: "more lines" not in chat.text)
        height = len(Content(text.strip()).wrap(turn.content_size.width))
        await chat.until(lambda: turn.size.height == height)


@pytest.mark.parametrize("text", ["line\n" * 5, "word " * 70])
async def test_what_takes_a_few_lines_is_shown_as_it_is(text: str) -> None:
    async with chatting() as chat:
        await chat.type(text)
        assert chat.box.text == text
        await chat.pilot.press("enter")
        await chat.until(lambda: chat.client.asked and chat.idle)
        assert "more lines" not in chat.text


async def test_a_long_paste_is_one_line_and_sent_whole() -> None:
    async with chatting() as chat:
        await chat.type("before ")
        await chat.type("\x1b[31m" + LONG)
        await chat.shows("before [pasted 1: 240 lines, 3,489 characters]", "960 tokens; Ctrl+L")
        await chat.type(" after")
        assert chat.box.text.count("\n") == 0
        await chat.pilot.press("enter")
        await chat.until(lambda: chat.client.asked and chat.idle)
        assert chat.client.asked[-1][-1].content == f"before {LONG} after"
        await chat.pilot.press("up")
        assert chat.box.whole == f"before {LONG} after"
        assert chat.box.text.count("\n") == 0


async def test_edits_take_a_fold_or_leave_it() -> None:
    async with chatting() as chat:
        await chat.type("a ")
        await chat.type(LONG)
        await chat.pilot.press("backspace")
        assert chat.box.whole == "a "
        await chat.pilot.press("ctrl+z")
        assert chat.box.whole == f"a {LONG}"
        await chat.pilot.press("left", "left", "left", "x")
        assert chat.box.whole == f"a {LONG}x"
        await chat.pilot.press("home", "delete", "delete", "delete")
        assert chat.box.whole == "x"
        await chat.pilot.press("ctrl+z")
        assert LONG in chat.box.whole


async def test_a_line_is_cut_whole_with_what_is_folded_in_it() -> None:
    async with chatting() as chat:
        await chat.type("a ")
        await chat.type(LONG)
        for _ in range(2):  # the second time there is nothing
            await chat.pilot.press("ctrl+x")
            assert chat.box.whole == ""
        await chat.type("one\ntwo")
        await chat.pilot.press("ctrl+x")
        assert chat.box.whole == "one\n"
        await chat.pilot.press("up", "ctrl+x")
        assert chat.box.whole == ""


async def test_a_fold_is_shown_in_full_on_demand() -> None:
    async with chatting() as chat:
        await chat.type(LONG)
        await chat.pilot.press("ctrl+l")
        assert chat.box.text == LONG
        await chat.pilot.press("ctrl+z")
        assert chat.box.text.count("\n") == 0
        assert chat.box.whole == LONG
        await chat.pilot.press("ctrl+y")
        assert chat.box.text == LONG


async def test_a_long_paste_is_on_disk_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specchat.tui.screens.talk._UNSENT", 1000.0)
    async with chatting(ScriptedClient(), store=Store(tmp_path / "history.db")) as chat:
        await chat.type("see: ")
        await chat.type(LONG)
        with Store(tmp_path / "history.db") as other:
            await chat.until(lambda: (kept := other.last()) and kept.unsent == f"see: \x02{LONG}\x03")


async def test_a_box_comes_back_as_it_was_with_what_was_pasted(tmp_path: Path) -> None:
    file = tmp_path / "history.db"
    typed = "\n".join("as long, but typed" for _ in range(20))
    async with chatting(store=Store(file)) as chat:
        await chat.type("note: ")
        await chat.type(LONG)
        await chat.type(" and ")
        for line in typed.split("\n"):
            await chat.type(line + "\n")
        left = chat.box.text
        await chat.screen.wind_down()
    for _ in range(2):  # what was restored is kept as well as what was pasted
        with Store(file) as store:
            async with chatting(store=store, resume=store.last()) as chat:
                await chat.until(lambda: chat.box.text == left)
                assert chat.box.whole == f"note: {LONG} and {typed}\n"
                await chat.shows("as long, but typed")
    with Store(file) as store:
        async with chatting(ScriptedClient(), store=store, resume=store.last()) as chat:
            await chat.pilot.press("enter")
            await chat.until(lambda: chat.client.asked and chat.idle)
            assert chat.client.asked[-1][-1].content == f"note: {LONG} and {typed}"


async def test_a_paste_that_was_unfolded_stays_so(tmp_path: Path) -> None:
    file = tmp_path / "history.db"
    async with chatting(store=Store(file)) as chat:
        await chat.type(LONG)
        await chat.pilot.press("ctrl+l")
        await chat.screen.wind_down()
    with Store(file) as store:
        async with chatting(store=store, resume=store.last()) as chat:
            await chat.until(lambda: chat.box.text == LONG)


async def test_pastes_stay_folded_in_the_conversation_that_is_come_back_to(tmp_path: Path) -> None:
    async with chatting(store=Store(tmp_path / "history.db")) as chat:
        await chat.say("one")
        first = chat.screen.journal.conversation
        assert first is not None
        await chat.type(LONG)
        folded = chat.box.text
        await chat.pilot.press("ctrl+n")
        await chat.type("\n".join("other" for _ in range(30)))
        await chat.screen.open_conversation(first)
        assert chat.box.text == folded
        assert chat.box.whole == LONG
