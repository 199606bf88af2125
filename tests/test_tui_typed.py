"""Whatever is typed, the chat lives on and says in place what is wrong with it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from specchat import locations
from specchat.commands import opening
from specchat.commands.options import Options
from specchat.tui import attach
from specchat.tui.completion import candidates
from tests.tui import HOSTILE, chatting

NOBODY = "~nobody-of-that-name"
LONG = "a" * 400  # longer than any file's name
NO_PATHS = (NOBODY, f"{NOBODY}/x", f"/{LONG}", LONG, "/" + "a/" * 3000, f"~/{LONG}", HOSTILE.replace("\n", " "))


@pytest.mark.parametrize("typed", NO_PATHS, ids=range(len(NO_PATHS)))
def test_what_is_no_path_is_no_file_and_raises_nothing(typed: str) -> None:
    path = locations.expanded(typed)
    assert not locations.is_file(path)
    assert not locations.exists(path)
    assert not candidates(f"@{typed}")
    assert not candidates(f"/model {typed}")


@pytest.mark.parametrize("typed", ["@types/node", "npm i @angular/core @vue/cli", "@someone", f"{NOBODY}/x"])
def test_what_only_looks_a_little_like_a_path_is_sent_as_it_is(
    typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert attach.find(typed) == ()


@pytest.mark.parametrize("typed", ["@/no/such", "@./x", "@../x/y", "@~/absent", '@"no such"', "@here/missing.txt"])
def test_a_path_to_no_file_is_refused(typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    with pytest.raises(attach.AttachError, match="There is no file"):
        attach.find(f"what is {typed} about?")


async def test_nothing_that_is_typed_for_a_path_ends_the_chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    async with chatting(opener=partial(opening.instead, Options())) as chat:
        for command in ("@", "/model ", "/export ", "/"):
            for typed in (f"{NOBODY}/x", f"/{LONG}", LONG):
                chat.box.replace_all(f"{command}{typed} ")
                await chat.pilot.press("enter")
                await chat.until(lambda: chat.idle and (chat.note or not chat.box.text) and "Looking" not in chat.note)
                chat.box.replace_all("")
        await chat.say("Are you there?")
        await chat.shows("Are you there?")
