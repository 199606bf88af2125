"""Whether what was typed is a command: text -> command and argument.

Contract: pure but for one look whether a path exists.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from specchat.errors import SpecchatError
from specchat.locations import exists
from specchat.tui.actions import COMMANDS, Command, find_command


class CommandError(SpecchatError):
    """The command cannot be carried out as typed, and has changed nothing."""


def invocation(text: str) -> tuple[Command, str] | None:
    """The command and argument in `text`; None if it is a message (a path is one). Raises CommandError."""
    match = re.match(r"/([A-Za-z][\w-]*|)(?:\s+(.*))?$", text.strip(), re.DOTALL)
    if match is None:
        return None
    name, argument = match[1], match[2] or ""
    command = find_command(name.lower())
    if command is None:
        if name and exists(Path(f"/{name}")):
            return None
        raise CommandError(f"There is no command /{name}." + _suggestion(name))
    if argument and not command.argument:
        raise CommandError(f"/{name} takes nothing after it.")
    return command, argument.strip()


def _suggestion(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), [command.name for command in COMMANDS], n=1)
    return f" Did you mean /{near[0]}?" if near else " /help lists them all."


def whole(text: str) -> int | None:
    """A whole number; None if it is none."""
    try:
        return int(text)
    except ValueError:
        return None
