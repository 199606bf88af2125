"""The user's own keys for the chat's actions, checked.

Contract: `checked` answers with a keymap that can be relied on (every action exists, every key can arrive, none has two
meanings in one place, none that a text is edited with is taken), or raises one sentence.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final

from textual.binding import Binding
from textual.keys import Keys, key_to_character
from textual.widgets import Input, TextArea

from specchat import locations
from specchat.errors import SpecchatError
from specchat.settings import Settings
from specchat.tui.actions import ACTIONS, Action, Place, keys_of

_MODIFIERS: Final = frozenset({"ctrl", "shift", "alt", "super", "meta", "hyper"})
_NAMED: Final = frozenset(key.value for key in Keys if "+" not in key.value and key.value[0] != "<")
# What a terminal sends for the one it sends for the other (without the newer keyboard protocol).
_SAME: Final = {"ctrl+i": "tab", "ctrl+m": "enter", "ctrl+h": "backspace", "ctrl+[": "escape"}
# A key is listened to there together with those of: what lies under it.
_UNDER: Final = {
    Place.PROMPT: (Place.SCREEN, Place.APP),
    Place.CONVERSATION: (Place.SCREEN, Place.APP),
    Place.LIST: (Place.APP,),
}


def _taken(widget: type[TextArea] | type[Input]) -> frozenset[str]:
    """The keys that a text is edited with."""
    bound = (Binding.make_bindings(cls.__dict__.get("BINDINGS", ())) for cls in widget.__mro__)
    return frozenset(binding.key for bindings in bound for binding in bindings)


# Where a text is being written when the key is pressed, and what that needs.
_TYPING: Final = {
    Place.APP: _taken(TextArea),
    Place.SCREEN: _taken(TextArea),
    Place.PROMPT: _taken(TextArea),
    Place.LIST: _taken(Input),
}


def of(settings: Settings) -> dict[str, str]:
    """The keymap that the settings file has. Raises SpecchatError, naming the file."""
    try:
        return checked(settings.keys)
    except SpecchatError as error:
        raise SpecchatError(f"{locations.tilde(locations.settings_file())}: {error}") from None


def checked(keys: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Action names with their keys, in Textual's names for them. Raises SpecchatError."""
    actions = {action.name: action for action in ACTIONS}
    keymap: dict[str, str] = {}
    for name, wanted in keys:
        if name not in actions:
            raise SpecchatError(_no_action(name, actions))
        listed = [_normal(key.strip(), name) for key in wanted.split(",") if key.strip()]
        if not listed:
            raise SpecchatError(f"keys: {name} needs a key")
        for key in listed:
            _check_free(key, actions[name])
        keymap[name] = ",".join(listed)
    _check_distinct(keymap)
    return keymap


def _no_action(name: str, actions: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, actions, n=1)
    suggestion = f" (did you mean {near[0]}?)" if near else ""
    return f"keys: there is no action {name}{suggestion}; the actions are {', '.join(actions)}"


def _normal(key: str, action: str) -> str:
    """A key in Textual's name for it."""
    *modifiers, last = key.lower().split("+") if len(key) > 1 else [key]
    named = last in _NAMED or len(last) == 1 or key_to_character(last) is not None
    if not named or not _MODIFIERS.issuperset(modifiers):
        raise SpecchatError(f'keys: {action} = "{key}" is no key; a key is written like ctrl+o, f5 or alt+enter')
    if (other := _SAME.get("+".join([*modifiers, last]))) is not None:
        raise SpecchatError(f'keys: {action} = "{key}" cannot be told from {other} by a terminal')
    return "+".join([*modifiers, last])


def _check_free(key: str, action: Action) -> None:
    if action.place not in _TYPING or key in action.keys:
        return
    character = key if len(key) == 1 else key_to_character(key)
    if character is not None and character.isprintable():
        raise SpecchatError(f'keys: {action.name} = "{key}" could then no longer be typed; use ctrl+ or an F key')
    if key in _TYPING[action.place]:
        raise SpecchatError(f'keys: {action.name} = "{key}" is needed for editing text; another one is free')


def _check_distinct(keymap: Mapping[str, str]) -> None:
    """Two actions with one key where both are listened to: only what the user has changed is looked at."""
    for action in ACTIONS:
        if action.name not in keymap:
            continue
        for other in ACTIONS:
            if other.name != action.name and _together(action.place, other.place):
                both = set(keys_of(action, keymap)) & set(keys_of(other, keymap))
                if both - _shared_anyway(action, other):
                    key = min(both)
                    raise SpecchatError(
                        f'keys: {action.name} = "{key}" is the key of {other.name} already; give that one another too'
                    )


def _shared_anyway(one: Action, other: Action) -> set[str]:
    """Keys that the two have in common as they are: the inner place hears them first, on purpose."""
    return set(one.keys) & set(other.keys)


def _together(one: Place, other: Place) -> bool:
    return one is other or other in _UNDER.get(one, ()) or one in _UNDER.get(other, ())
