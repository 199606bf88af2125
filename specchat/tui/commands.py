"""Slash commands: what was typed -> something done, or one sentence about what is wrong with it.

Contract: `invocation` is pure but for one look whether a path exists; `CommandRunner.run` changes the session or the
screen and answers with a sentence to show. A command that fails raises `CommandError` and has changed nothing.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from specchat.engine.policy import Mode, Speculation
from specchat.errors import SpecchatError
from specchat.session import Session
from specchat.tui.actions import COMMANDS, Command, find_command
from specchat.tui.figures import wish
from specchat.tui.text import one_line

_MOST_DEPTH: Final = 64
_MOST_TEMPERATURE: Final = 10.0


class CommandError(SpecchatError):
    """The command cannot be carried out as typed."""


class Screen(Protocol):
    """What commands ask of the chat screen."""

    @property
    def session(self) -> Session:
        """The conversation and its engine."""

    def ask_speculation(self, speculation: Speculation) -> None:
        """Set it and show it."""

    def start_anew(self) -> None:
        """Begin a new conversation."""

    def show_help(self) -> None:
        """Open the help screen."""

    def leave(self) -> None:
        """Quit."""


def invocation(text: str) -> tuple[Command, str] | None:
    """The command and argument in `text`; None if it is a message (a path is one). Raises CommandError."""
    match = re.match(r"/([a-z]*)(?:\s+(.*))?$", text.strip(), re.DOTALL)
    if match is None:
        return None
    name, argument = match[1], match[2] or ""
    command = find_command(name)
    if command is None:
        if name and Path(f"/{name}").exists():
            return None
        raise CommandError(f"There is no command /{name}." + _suggestion(name))
    if argument and not command.argument:
        raise CommandError(f"/{name} takes nothing after it.")
    return command, argument.strip()


def _suggestion(name: str) -> str:
    near = difflib.get_close_matches(name, [command.name for command in COMMANDS], n=1)
    return f" Did you mean /{near[0]}?" if near else " /help lists them all."


class CommandRunner:
    """One method `run_<name>` a command; each answers with a sentence to show, "" for none."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def run(self, command: Command, argument: str) -> str:
        """Carry out `command`. Raises CommandError."""
        method: Callable[[str], str] = getattr(self, f"run_{command.name}")
        return method(argument)

    def run_help(self, _: str) -> str:
        self._screen.show_help()
        return ""

    def run_new(self, _: str) -> str:
        self._screen.start_anew()
        return ""

    def run_exit(self, _: str) -> str:
        self._screen.leave()
        return ""

    def run_speculation(self, argument: str) -> str:
        now = self._screen.session.speculation
        if not argument:
            return f"Speculation is set to {wish(now)}."
        try:
            mode = Mode(argument)
        except ValueError:
            choices = ", ".join(mode.value for mode in Mode)
            raise CommandError(f"{one_line(argument, 40)} is no drafter; choose one of {choices}.") from None
        self._screen.ask_speculation(replace(now, mode=mode))
        return ""

    def run_depth(self, argument: str) -> str:
        now = self._screen.session.speculation
        if not argument:
            return f"The depth is set to {now.depth or 'auto'}."
        if argument == "auto":
            self._screen.ask_speculation(replace(now, depth=None))
            return "The depth is left to the program."
        depth = _whole(argument)
        if depth is None or not 1 <= depth <= _MOST_DEPTH:
            raise CommandError(f"The depth is a whole number from 1 to {_MOST_DEPTH}, or auto.")
        self._screen.ask_speculation(replace(now, depth=depth))
        return f"Up to {depth} tokens are proposed a round from now on."

    def run_system(self, argument: str) -> str:
        session = self._screen.session
        if not argument:
            return f"System prompt: {one_line(session.system_prompt)}" if session.system_prompt else "No system prompt."
        session.system_prompt = "" if argument == "none" else argument
        return "The system prompt holds from the next message on." if session.system_prompt else "No system prompt."

    def run_temp(self, argument: str) -> str:
        session = self._screen.session
        if not argument:
            return f"The temperature is {session.options.sampling.temperature:g}."
        try:
            value = float(argument)
        except ValueError:
            value = -1.0
        if not 0 <= value <= _MOST_TEMPERATURE:
            raise CommandError(f"The temperature is a number from 0 to {_MOST_TEMPERATURE:g}.")
        session.options = replace(session.options, sampling=replace(session.options.sampling, temperature=value))
        return f"Temperature {value:g} from the next message on."


def _whole(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
