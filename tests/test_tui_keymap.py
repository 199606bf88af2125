"""The user's own keys: which are taken, and that everything that names a key names theirs."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from specchat import settings
from specchat.cli import main
from specchat.errors import SpecchatError
from specchat.tui import keymap
from specchat.tui.actions import ACTIONS, key_name
from tests.tui import chatting


@pytest.mark.parametrize(
    ("action", "keys", "expected"),
    [
        ("new", "f11", "f11"),
        ("send", "ctrl+o, enter", "ctrl+o,enter"),
        ("quit", "Ctrl+Q", "ctrl+q"),
        ("copy", "x", "x"),
        ("top", "t", "t"),
        ("previous", "alt+up", "alt+up"),
    ],
)
def test_keys_are_taken_in_textuals_names(action: str, keys: str, expected: str) -> None:
    assert keymap.checked([(action, keys)]) == {action: expected}


@pytest.mark.parametrize(
    ("action", "keys", "said"),
    [
        ("snd", "f11", "there is no action snd (did you mean send?); the actions are send, newline, previous"),
        ("new", "ctrl+foo", "is no key"),
        ("new", "strg+o", "is no key"),
        ("new", " , ", "needs a key"),
        ("new", "ctrl+a", "is needed for editing text"),
        ("new", "left", "is needed for editing text"),
        ("delete", "ctrl+e", "is needed for editing text"),
        ("new", "x", "no longer be typed"),
        ("help", "?", "no longer be typed"),
        ("help", "space", "no longer be typed"),
        ("new", "ctrl+m", "cannot be told from enter"),
        ("new", "f3", "is the key of metrics already"),
        ("copy", "e", "is the key of edit already"),
    ],
)
def test_what_cannot_be_a_key_is_said(action: str, keys: str, said: str) -> None:
    with pytest.raises(SpecchatError) as raised:
        keymap.checked([(action, keys)])
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_two_actions_may_change_places() -> None:
    swapped = {"metrics": "f4", "origins": "f3"}
    assert keymap.checked(swapped.items()) == swapped


def test_every_action_can_be_given_its_own_keys() -> None:
    own = {action.name: ",".join(action.keys) for action in ACTIONS}
    assert keymap.checked(own.items()) == own


def test_keys_stand_in_the_settings_file(specchat_home: Path) -> None:
    (specchat_home / "settings.toml").write_text('[keys]\nnew = "f11"\n')
    assert keymap.of(settings.load()) == {"new": "f11"}
    assert 'keys = { "new" = "f11" }' in settings.template(settings.read())
    (specchat_home / "settings.toml").write_text("keys = { new = 5 }\n")
    with pytest.raises(SpecchatError, match="keys must be a table"):
        settings.load()
    (specchat_home / "settings.toml").write_text('keys = { nw = "f11" }\n')
    result = CliRunner().invoke(main, ["settings"])
    assert result.exit_code == 1
    assert "settings.toml: keys: there is no action nw (did you mean new?)" in result.stderr


async def test_everything_names_the_keys_that_there_are() -> None:
    mine = {"help": "f12", "new": "ctrl+o", "send": "f11", "toggle_speculation": "f10", "copy": "x"}
    async with chatting(keymap=keymap.checked(mine.items())) as chat:
        await chat.shows("F12 Help", "Ctrl+O New", "F10 Speculation off", "F10 switches speculation")
        await chat.type("hi")
        await chat.pilot.press("f11")
        await chat.until(lambda: chat.client.asked and chat.idle)
        await chat.pilot.press("tab")
        await chat.shows("x Copy")
        await chat.pilot.press("x")
        assert chat.app.clipboard == "Hello there."
        await chat.pilot.press("f12")
        await chat.shows("Keys and commands", "F11", "Send the message")
        await chat.pilot.press("f12")
        await chat.until(lambda: "Keys and commands" not in chat.text)
        await chat.pilot.press("escape", "f2")
        await chat.shows("F10 Speculation off")  # the old key does nothing


def test_a_key_is_named_as_people_write_it() -> None:
    names = {"ctrl+end": "Ctrl+End", "left_square_bracket": "[", "pageup": "PgUp", "G": "G", "ctrl+n": "Ctrl+N"}
    assert {key: key_name(key) for key in names} == names
