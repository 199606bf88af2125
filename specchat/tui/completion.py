"""Completion of slash commands, and of the paths of files to attach.

Contract: `candidates` depends on the text before the cursor alone, for `@path` on what is in that folder, and for
`/model` on which pairs are installed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

from specchat import settings
from specchat.errors import SpecchatError
from specchat.pairs.catalog import Pair
from specchat.tui.actions import COMMANDS, Command, find_command
from specchat.tui.attach import mention, paths
from specchat.tui.screens.models import installed
from specchat.tuning import SETTABLE

_MENTION: Final = re.compile(r'(?:^|\s)(?P<mention>@(?:"(?P<quoted>[^"\n]+)|(?P<bare>[^\s"]\S*)))$')  # still typed
Pairs: TypeAlias = Callable[[], Iterable[Pair]]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One offer: what the list shows, and the text the box holds once it is taken."""

    label: str
    help: str
    text: str


def candidates(text: str, pairs: Pairs = installed) -> tuple[Candidate, ...]:
    """What the command in `text`, as far as it is typed, could become; () where it is none or complete.

    `pairs` is asked for those that `/model` could load, which may raise SpecchatError or OSError.
    """
    if (mentioned := _MENTION.search(text)) is not None:
        before = text[: mentioned.start("mention")]
        offers = (
            Candidate(path, "", before + mention(path) + ("" if path.endswith("/") else " "))
            for path in paths(mentioned["quoted"] or mentioned["bare"])
        )
        return tuple(offer for offer in offers if offer.text.rstrip() != text)
    if not text.startswith("/") or "\n" in text:
        return ()
    word, space, argument = text[1:].partition(" ")
    if not space:
        return tuple(
            Candidate(command.usage, command.help, f"/{command.name}" + (" " if command.argument else ""))
            for command in COMMANDS
            if command.name.startswith(word)
        )
    command = find_command(word)
    if command is None:
        return ()
    return tuple(
        Candidate(choice, help, f"/{word} {choice}")
        for choice, help in _choices(command, argument, pairs)
        if choice.lower().startswith(argument.lower()) and choice.rstrip() != argument
    )


def _choices(command: Command, argument: str, pairs: Pairs) -> Iterable[tuple[str, str]]:
    """What its argument could be, and what that means; a trailing space where more has to follow."""
    match command.name:
        case "model":
            return _models(argument, pairs)
        case "set":
            return _settings(argument)
    return ((choice, "") for choice in command.choices)


def _models(argument: str, pairs: Pairs) -> Iterable[tuple[str, str]]:
    if argument.startswith(("/", "~", ".")):
        return ((path, "") for path in paths(argument) if path.endswith(("/", ".gguf")))
    with suppress(SpecchatError, OSError):
        return ((pair.name, pair.description) for pair in pairs())
    return ()


def _settings(argument: str) -> Iterable[tuple[str, str]]:
    name, space, _ = argument.partition(" ")
    if not space:
        return ((f"{setting} ", settings.described(setting)) for setting in SETTABLE)
    values = settings.choices_of(name) if name in SETTABLE else ()
    return ((f"{name} {value}", "") for value in (*values, "default"))
