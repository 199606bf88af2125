"""Slash commands: a command and its argument -> something done, or one sentence about what is wrong with it.

Contract: `CommandRunner.run` changes the session or the screen and answers with a sentence to show. A command that
fails raises `CommandError`, or another SpecchatError, and has changed nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from specchat.history import to_json, to_markdown
from specchat.locations import expanded, tilde
from specchat.tui.actions import Command
from specchat.tui.invocation import CommandError, whole
from specchat.tui.model_commands import ModelCommands
from specchat.tui.text import one_line
from specchat.tui.widgets.turns import ReplyTurn, Turn, UserTurn

T = TypeVar("T", bound=Turn)


class CommandRunner(ModelCommands):
    """One method `run_<name>` a command; each answers with a sentence to show, "" for none."""

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

    def run_system(self, argument: str) -> str:
        session = self._screen.session
        if not argument:
            return f"System prompt: {one_line(session.system_prompt)}" if session.system_prompt else "No system prompt."
        session.system_prompt = "" if argument == "none" else argument
        self._screen.journal.keep_settings()
        return "The system prompt holds from the next message on." if session.system_prompt else "No system prompt."

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
        elif what == "code" and (not number or whole(number) is not None):
            self._screen.copy_code(reply, whole(number) if number else None)
        else:
            raise CommandError("It is /copy, /copy code, or /copy code N.")
        return ""

    def run_export(self, argument: str) -> str:
        journal = self._screen.journal
        if journal.conversation is None or journal.leaf is None:
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
        target = expanded(file or f"specchat-{conversation.id}.{kind}")
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
        id = journal.conversation.id
        if argument:
            kept = journal.store.rename(id, "" if argument == "auto" else argument)
        else:
            kept = journal.store.conversation(id)
        by_hand = " (/title auto makes it from your first message again)" if kept.title_origin == "edited" else ""
        return f"Its title is: {one_line(kept.title, 60)}{by_hand}"

    # ---- the model

    async def run_pull(self, argument: str) -> str:
        return await self._screen.fetch(argument)

    def run_race(self, argument: str) -> str:
        self._screen.race(argument)
        return ""
