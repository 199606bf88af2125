"""One conversation with one engine: its history, and the client that streams replies. No screen.

Contract: `load` and `send` are blocking generators, iterated in one thread at a time (the screen gives them a thread
of their own, `ask` its only one); everything else may be called from any thread at any time. The history changes only
when a reply has ended: by itself, stopped, or by an error after some text came.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from specchat.engine.chat import Event, Message, ReplyOptions
from specchat.engine.policy import Speculation
from specchat.worker.client import Client
from specchat.worker.protocol import EngineInfo, Loading, LoadSettings

SessionEvent: TypeAlias = Loading | Event


@dataclass(frozen=True, slots=True)
class Launch:
    """What to open and how: command line, settings and catalogue already merged (`specchat.commands.options`)."""

    name: str  # the pair's name, or the target's file name
    target: Path
    draft: Path | None = None
    draft_required: bool = False  # the user named this draft file
    is_demo: bool = False
    settings: LoadSettings = field(default_factory=LoadSettings)
    options: ReplyOptions = field(default_factory=ReplyOptions)
    system_prompt: str = ""


class Session:
    """History, options and engine of one conversation.

    `messages` (the turns so far, without the system prompt) is an immutable tuple that may be replaced between
    replies: shorten it and `send` again to edit an earlier turn. `options` and `system_prompt` hold from the next
    reply on.
    """

    launch: Launch
    messages: tuple[Message, ...]
    options: ReplyOptions
    system_prompt: str

    def __init__(self, launch: Launch, client: Client | None = None) -> None:
        self.launch = launch
        self.messages = ()
        self.options = launch.options
        self.system_prompt = launch.system_prompt

    @property
    def info(self) -> EngineInfo | None:
        """What is loaded; None while nothing is."""
        raise NotImplementedError

    @property
    def speculation(self) -> Speculation:
        """What the user asked for last."""
        raise NotImplementedError

    def load(self) -> Iterator[Loading]:
        """Start the engine, yielding progress. Raises SpecchatError (EngineDied when the process died).

        May be called again after a failure.
        """
        raise NotImplementedError

    def send(self, text: str) -> Iterator[SessionEvent]:
        """Stream the reply to `text`, waking the engine first (yielding `Loading`) if it is not running.

        Afterwards `messages` ends with the user's turn and the reply, partial if it was stopped, the generator was
        closed, or an error (raised: SpecchatError) cut it short. If no text came at all `messages` is unchanged.
        """
        raise NotImplementedError

    def stop(self) -> None:
        """End the running reply at the next round; `send` then yields `Finished("cancelled")` and returns."""

    def set_speculation(self, speculation: Speculation) -> None:
        """At once, in the middle of a reply too; kept when the engine is started again."""

    def count_tokens(self, text: str) -> int:
        """Tokens of `text` by the target's vocabulary. Raises EngineError if nothing is loaded."""
        raise NotImplementedError

    def close(self) -> None:
        """End the engine's process within a second. A later `send` wakes another."""
