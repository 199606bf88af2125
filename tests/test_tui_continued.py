"""A reply that is written on looks at every moment as one that was written in one go."""

from __future__ import annotations

import threading
from typing import Final

import pytest
from textual.app import App, ComposeResult
from textual.containers import Horizontal

from specchat.engine.replies import Finished
from specchat.engine.rounds import Origin
from specchat.engine.stats import Figures
from specchat.tui.reply import Reply
from specchat.tui.shown import Shown
from specchat.tui.widgets.turns import ReplyTurn
from tests.scripted_client import ScriptedClient, generated, until
from tests.tui import chatting, picture

_BEFORE: Final = "# Title\n\nFirst this.\n\n"
_KINDS: Final = {
    "fence": "```python\ndef one():\n    return 1\n\n\ndef two():\n    return 2\n```\nand done",
    "indented code": "    one\n    two\n\n    three\n\nand done",
    "list": "- one\n- two\n  more of two\n- three\n\nand done",
    "nested list": "1. one\n   - a\n   - b\n2. two\n   ```\n   code\n   ```\n3. three",
    "table": "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n| 5 | 6 |\n\nand done",
    "paragraph": "one line of it\nand *another with\nemphasis* at its end\n\nand done",
    "quote": "> one\n> two\n>\n> three\n\nand done",
    "heading": "## Half a head ing\nunder it\n\n---\n\nand done",
    "nothing before": "",
}


class _Pair(App[None]):
    """Two replies beside each other: one written in one go, one that is stopped and written on."""

    CSS = "ReplyTurn { width: 40; height: auto; }"

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield ReplyTurn()
            yield ReplyTurn()

    @property
    def halves(self) -> tuple[str, str]:
        lines = [line.ljust(80) for line in picture(self).split("\n")]
        return "\n".join(line[:40] for line in lines), "\n".join(line[40:80] for line in lines)


def _reply(*pieces: str) -> Reply:
    reply = Reply()
    for piece in pieces:
        reply.add(generated(piece, Figures(), Origin.ACCEPTED))
    return reply


@pytest.mark.parametrize("from_history", [False, True])
@pytest.mark.parametrize("kind", list(_KINDS))
async def test_a_reply_written_on_looks_as_one_written_in_one_go(kind: str, from_history: bool) -> None:
    text = _BEFORE + _KINDS[kind]
    pieces = [text[at : at + 7] for at in range(0, len(text), 7)]
    app = _Pair()
    async with app.run_test(size=(80, 40)) as pilot:
        place = app.query_one(Horizontal)
        for stop in range(1 + from_history, len(pieces), 4):  # what history has is as good as what was streamed
            whole, stopped = ReplyTurn(), ReplyTurn()
            said = "".join(pieces[:stop])
            if from_history:
                stopped = ReplyTurn(Shown("assistant", said, finish="cancelled"))
            await place.remove_children()
            await place.mount(whole, stopped)
            await whole.update_from(_reply(*pieces[:stop]))
            if not from_history:
                first = _reply(*pieces[:stop])
                await stopped.update_from(first)
                first.add(Finished("cancelled", Figures()))
                await stopped.finish(first)
            stopped.reopen()
            for end in range(stop + 1, len(pieces) + 1):
                await whole.update_from(_reply(*pieces[:end]))
                await stopped.update_from(_reply(*pieces[stop:end]))
                await pilot.pause()
                left, right = app.halves
                assert right == left, f"stopped after {said!r}, {end - stop} pieces on"


@pytest.mark.parametrize("known", [True, False])
async def test_by_origin_a_reply_written_on_keeps_what_it_said_before(known: bool) -> None:
    said = "One line\nand half a"
    first = _reply(said)
    turn = ReplyTurn(by_origin=True) if known else ReplyTurn(Shown("assistant", said), by_origin=True)
    app = _Pair()
    async with app.run_test(size=(80, 40)) as pilot:
        place = app.query_one(Horizontal)
        await place.remove_children()
        await place.mount(turn)
        if known:
            await turn.finish(first)
        for _ in range(2):  # it may be stopped and written on again
            turn.reopen()
            await pilot.pause()
            assert "One line" in picture(app)
            assert "half a" in picture(app)
            more = _reply(" line more")
            await turn.update_from(more)
            await pilot.pause()
            assert "half a line more" in picture(app)
            await turn.finish(more)
            await pilot.pause()
            assert "half a line more" in picture(app)
        turn.color_by_origin(False)
        await pilot.pause()
        assert "One line and half a line more line more" in " ".join(picture(app).split())


async def test_a_code_block_stays_one_while_it_is_written_on_and_is_copied_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TMUX", raising=False)
    gate = threading.Event()
    client = ScriptedClient(until(threading.Event(), "See:\n\n```python\nfirst = 1\nsec", "never"))
    async with chatting(client) as chat:
        await chat.say("code", wait=False)
        await chat.shows("sec")
        await chat.pilot.press("escape")
        await chat.until(lambda: chat.idle)
        client.script = until(gate, "ond = 2\nthird", " = 3\n```\nDone.")
        await chat.say("/continue", wait=False)
        await chat.shows("first = 1", "second = 2", "third")
        await chat.say("/copy", wait=False)
        assert chat.app.clipboard == "See:\n\n```python\nfirst = 1\nsecond = 2\nthird"
        gate.set()
        await chat.until(lambda: chat.idle)
        await chat.shows("first = 1", "second = 2", "third = 3", "Done.")
        await chat.say("/copy")
        assert chat.app.clipboard == "See:\n\n```python\nfirst = 1\nsecond = 2\nthird = 3\n```\nDone."
        await chat.say("/copy code")
        assert chat.app.clipboard == "first = 1\nsecond = 2\nthird = 3"
