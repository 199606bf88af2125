"""Slash commands: what was typed -> something done, or one sentence about what is wrong with it.

Contract: `invocation` is pure but for one look whether a path exists; `CommandRunner.run` changes the session or the
screen and answers with a sentence to show. A command that fails raises `CommandError` and has changed nothing.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from specchat.engine.policy import Mode
from specchat.errors import SpecchatError
from specchat.history import to_json, to_markdown
from specchat.locations import tilde
from specchat.tui.actions import COMMANDS, Command, find_command
from specchat.tui.figures import wish
from specchat.tui.text import one_line
from specchat.tui.widgets.turns import ReplyTurn, Turn, UserTurn

T = TypeVar("T", bound=Turn)

_MOST_DEPTH: Final = 64
_MOST_TEMPERATURE: Final = 10.0


class CommandError(SpecchatError):
    """The command cannot be carried out as typed."""


if TYPE_CHECKING:
    from specchat.tui.screens.chat import ChatScreen


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

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen

    async def run(self, command: Command, argument: str) -> str:
        """Carry out `command`. Raises SpecchatError."""
        method: Callable[[str], str | Awaitable[str]] = getattr(self, f"run_{command.name}")
        said = method(argument)
        return said if isinstance(said, str) else await said

    def run_help(self, _: str) -> str:
        self._screen.action_help()
        return ""

    async def run_new(self, _: str) -> str:
        await self._screen.start_anew()
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

    # ---- the conversation

    def _last(self, kind: type[T]) -> T:
        turns = [turn for turn in self._screen.transcript.turns if isinstance(turn, kind)]
        if not turns:
            raise CommandError("This conversation is empty.")
        return turns[-1]

    def run_regen(self, _: str) -> str:
        self._screen.regenerate(self._last(UserTurn))
        return ""

    def run_edit(self, _: str) -> str:
        self._screen.call_after_refresh(self._screen.edit, self._last(UserTurn))
        return ""

    def run_continue(self, _: str) -> str:
        self._screen.go_on(self._last(ReplyTurn))
        return ""

    def run_copy(self, argument: str) -> str:
        reply = self._last(ReplyTurn)
        what, _, number = argument.partition(" ")
        if not argument:
            self._screen.copy(reply)
        elif what == "code" and (not number or _whole(number) is not None):
            self._screen.copy_code(reply, _whole(number) if number else None)
        else:
            raise CommandError("It is /copy, /copy code, or /copy code N.")
        return ""

    def run_export(self, argument: str) -> str:
        journal = self._screen.journal
        if journal.conversation is None:
            raise CommandError("This conversation is empty.")
        kind, _, file = argument.partition(" ")
        if kind not in ("md", "json", ""):
            kind, file = "", argument
        kind = kind or ("json" if file.endswith(".json") else "md")
        conversation = journal.store.conversation(journal.conversation.id)
        path = journal.store.path(journal.leaf)
        if kind == "json":
            text = to_json(conversation, journal.store.tree(conversation.id), path)
        else:
            text = to_markdown(conversation, path)
        target = Path(file or f"specchat-{conversation.id}.{kind}").expanduser()
        try:
            with target.open("x", encoding="utf-8") as out:
                out.write(text)
        except FileExistsError:
            raise CommandError(f"{tilde(target)} exists already: give another name.") from None
        except OSError as error:
            raise CommandError(f"{tilde(target)} cannot be written: {error.strerror}.") from error
        return f"Saved as {tilde(target.absolute())}."

    def run_search(self, argument: str) -> str:
        self._screen.action_conversations(argument)
        return ""

    def run_title(self, argument: str) -> str:
        journal = self._screen.journal
        if journal.conversation is None:
            raise CommandError("This conversation is empty.")
        title = journal.store.rename(journal.conversation.id, argument).title
        return f"Its title is: {one_line(title, 60)}"

    # ---- the model

    def run_race(self, argument: str) -> str:
        self._screen.race(argument)
        return ""

    def run_think(self, argument: str) -> str:
        session = self._screen.session
        info = session.info
        if info is None or not info.can_toggle_thinking:
            raise CommandError("This model's template has no switch for reasoning.")
        variables = dict(session.options.template_variables)
        if argument in ("on", "off"):
            variables["enable_thinking"] = argument == "on"
            session.options = replace(session.options, template_variables=tuple(variables.items()))
        elif argument:
            raise CommandError("It is /think on or /think off.")
        return f"Reasoning is {'on' if variables.get('enable_thinking', True) else 'off'} from the next message on."

    def run_tokens(self, argument: str) -> str:
        session, figures = self._screen.session, self._screen.figures
        if argument:
            count = session.count_tokens(argument)
            return f"{count:,} {'token' if count == 1 else 'tokens'}."
        size = figures.context_size or (session.info.n_ctx if session.info else 0)
        return f"The conversation takes {figures.context_used:,} of {size:,} tokens."

    async def run_plan(self, _: str) -> str:
        plan = self._screen.session.plan()
        if not plan:
            raise CommandError("Nothing is loaded.")
        await self._screen.transcript.add_notice("\n".join(plan))
        return ""

    def run_unload(self, _: str) -> str:
        if self._screen.busy:
            raise CommandError("Stop the reply first.")
        self._screen.session.close()
        self._screen.show_state()
        return "The models are unloaded; the next message loads them again."


def _whole(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
