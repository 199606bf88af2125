"""Long pastes: one line in the box, whole everywhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specchat.history import Store
from specchat.tui.folds import Folds, is_long
from tests.scripted_client import ScriptedClient
from tests.tui import chatting

LONG = "\n".join(f"line {n} of it" for n in range(240))


@given(st.lists(st.text(max_size=40), min_size=1, max_size=5), st.text(max_size=20))
def test_folding_and_expanding_are_inverse(pastes: list[str], between: str) -> None:
    folds = Folds()
    folded = between.join(map(folds.fold, pastes))
    assert folds.expand(folded) == between.join(pastes)
    assert "\n" not in folds.fold(pastes[0])


def test_a_stand_in_of_nothing_is_text() -> None:
    text = "[pasted 7: 2 lines, 30 characters]"
    assert Folds().expand(text) == text
    assert Folds().around(text, 5) is None
    assert not is_long("a\nb")
    assert is_long("x" * 2001)


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
            await chat.until(lambda: (kept := other.last()) and kept.unsent == f"see: {LONG}")


async def test_unsent_text_is_kept_with_what_was_pasted(tmp_path: Path) -> None:
    async with chatting(ScriptedClient(), store=Store(tmp_path / "history.db")) as chat:
        await chat.type("note: ")
        await chat.type(LONG)
        journal = chat.screen.journal
        await chat.until(lambda: journal.conversation is not None)

        def kept() -> str:
            with Store(tmp_path / "history.db") as other:
                last = other.conversation(journal.shown_id)
                return last.unsent

        await chat.until(lambda: kept() == f"note: {LONG}")
