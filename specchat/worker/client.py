"""The parent's side of the engine's process: start it, stream from it, cancel, survive its death.

Contract: `load` and `reply` are blocking generators for one thread at a time; every other method may be called from
any thread at any time. When the child dies, whoever waits gets `EngineDied`; `load` starts another. No name of
llama.cpp is imported here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from specchat.engine.chat import Event, Message, ReplyOptions
from specchat.engine.policy import Speculation
from specchat.errors import SpecchatError
from specchat.worker.protocol import EngineInfo, Fault, Loading, LoadSettings


class EngineError(SpecchatError):
    """The engine refused or failed; its process lives on."""

    def __init__(self, sentence: str, fault: Fault = Fault.INPUT) -> None:
        super().__init__(sentence)
        self.fault = fault


class EngineDied(EngineError):
    """The engine's process ended by itself. `memory_suspected`: it was probably killed for the memory it took."""

    def __init__(self, sentence: str, log: Path, memory_suspected: bool) -> None:
        super().__init__(sentence, Fault.INTERNAL)
        self.log = log
        self.memory_suspected = memory_suspected


class Client:
    """One engine process at a time."""

    @property
    def info(self) -> EngineInfo | None:
        """What is loaded; None before `load` has ended, and after the process ended."""
        raise NotImplementedError

    def load(
        self, target: Path, draft: Path | None, settings: LoadSettings, *, draft_required: bool = False
    ) -> Iterator[Loading]:
        """Start the process if there is none and load the models into it; afterwards `info` tells what is loaded.

        Raises EngineError (a file that is no model, say) or EngineDied. Closing the generator ends the process.
        """
        raise NotImplementedError

    def reply(self, messages: Sequence[Message], options: ReplyOptions) -> Iterator[Event]:
        """Stream a reply; the last event is a `Finished`. Closing the generator cancels the reply.

        Raises EngineError (a prompt longer than the context, say) or EngineDied.
        """
        raise NotImplementedError

    def cancel(self) -> None:
        """Stop the running reply at the next round or batch: it ends with `Finished("cancelled")`."""

    def set_speculation(self, speculation: Speculation) -> None:
        """From the next round on, in the middle of a reply too."""

    def count(self, text: str) -> int:
        """Tokens of `text` by the target's vocabulary."""
        raise NotImplementedError

    def close(self) -> None:
        """End the process, within a second, and give its memory back. `load` may start another."""
