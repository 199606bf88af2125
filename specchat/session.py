"""One conversation with one engine: its history, and the client that streams replies. No screen.

Contract: `load` and `send` are blocking generators, iterated in one thread at a time (the screen gives them a thread
of their own, `ask` its only one); everything else may be called from any thread at any time. The history changes only
when a reply has ended: by itself, stopped, or by an error after some text came.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeAlias

from specchat import state
from specchat.engine.policy import Mode, Speculation
from specchat.engine.replies import Event, Finished, Generated, Message, Notice, ReplyOptions
from specchat.engine.stats import Figures
from specchat.engine.text import Piece
from specchat.errors import SpecchatError
from specchat.idle import Idle
from specchat.worker.client import Client, EngineClosed, EngineDied, EngineError
from specchat.worker.protocol import EngineInfo, Fault, Loading, LoadSettings

SessionEvent: TypeAlias = Loading | Event
DEATHS: Final = 3  # of engines in a row while loading, before it is given up


@dataclass(frozen=True, slots=True)
class Attachment:
    """Text to be put before a message, under its name where there are several."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Launch:
    """What to open and how: command line, settings and catalogue already merged (`specchat.commands.options`)."""

    name: str  # the pair's name, or the target's file name
    target: Path
    draft: Path | None = None
    draft_required: bool = False  # the user named this draft file
    is_demo: bool = False
    record: str = ""  # what `specchat` without arguments will open, once this was loaded; "": what it did before
    settings: LoadSettings = field(default_factory=LoadSettings)
    options: ReplyOptions = field(default_factory=ReplyOptions)
    system_prompt: str = ""
    attachments: tuple[Attachment, ...] = ()
    idle_seconds: float = 0.0  # after which the engine gives its memory back; 0: never
    advice: Callable[[], str] = field(default=lambda: "", compare=False)  # asked where memory does not suffice
    remark: str = ""  # a sentence about the draft model, to be told among the engine's notices
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)  # settings -> where their values come from


class Session:
    """History, options and engine of one conversation.

    `messages` (the turns so far, without the system prompt) is an immutable tuple that may be replaced between
    replies: shorten it and `send` again to edit an earlier turn. `options` and `system_prompt` hold from the next
    reply on. `attachments` go out with the next message. `failure` is why the latest load failed, None if it did not.
    `on_idle` is called, in a thread of its own, once the engine was closed because nobody used it; `on_death` when it
    died meanwhile. The next `send` wakes another.
    """

    launch: Launch
    messages: tuple[Message, ...]
    options: ReplyOptions
    system_prompt: str
    attachments: tuple[Attachment, ...]
    failure: SpecchatError | None
    on_idle: Callable[[], None]
    on_death: Callable[[EngineDied], None]

    def __init__(self, launch: Launch, client: Client | None = None) -> None:
        self.launch = launch
        self.messages = ()
        self.options = launch.options
        self.system_prompt = launch.system_prompt
        self.attachments = launch.attachments
        self.failure = None
        self.on_idle = lambda: None
        self.on_death = lambda _: None
        self._client = client or Client()
        self._client.on_death = self._died_unattended
        self._speculation = launch.settings.speculation
        self._stopping = threading.Event()
        self._idle = Idle(launch.idle_seconds, self._unload)
        self._disturbed = False  # other work of this program runs beside the engine
        self._steps_down = 0  # rungs of the plan that ended an engine
        self._step = 0  # the rung that the latest engine is on
        self._restoring = False  # the draft is to be brought back before the next reply

    def _unload(self) -> None:
        self._client.close()
        self.on_idle()

    def _died_unattended(self, death: EngineDied) -> None:
        self._learn_from(death)
        self.on_death(death)

    @property
    def info(self) -> EngineInfo | None:
        """What is loaded; None while nothing is."""
        info = self._client.info
        if info is None or not self.launch.remark:
            return info
        return replace(info, notices=(self.launch.remark, *info.notices))

    @property
    def speculation(self) -> Speculation:
        """What the user asked for last."""
        return self._speculation

    def load(self) -> Generator[Loading, None, None]:
        """Start the engine, yielding progress. Raises SpecchatError (EngineDied when the process died).

        A process that dies meanwhile is started again, one step down the plan if memory was the cause; the third
        death in a row is raised. May be called again after a failure. Closing the generator ends the engine's process.
        """
        self.failure = None
        try:
            with self._idle.busy():
                yield from self._load_with_patience()
        except EngineClosed:
            raise  # wanted, and so no failure
        except SpecchatError as error:
            self.failure = self._advised(error)
            raise self.failure from None
        if self.launch.record:
            state.remember_opened(self.launch.record)

    def adopt(self, launch: Launch) -> None:
        """Go on with other settings: of sampling from the next reply on, of loading from the next load on.

        What was asked of speculation meanwhile stays.
        """
        self.launch = launch
        self.options = replace(self.options, sampling=launch.options.sampling)
        self._idle.seconds = launch.idle_seconds

    def switch(self, launch: Launch, wanted: bool = False) -> Generator[Loading, None, None]:
        """End the engine and load other models in its place, yielding progress; the history stays.

        Where that fails the models that were loaded before are loaded again, and the error is raised then
        (SpecchatError): also where they are only `wanted`, as their loading was ended for these. Not while a reply is
        written.
        """
        before, loaded = self.launch, wanted or self.info is not None
        self._replace(launch)
        try:
            yield from self.load()
        except EngineClosed:
            raise
        except SpecchatError as error:
            self._replace(before)
            if loaded:
                yield from self.load()
            raise error

    def _replace(self, launch: Launch) -> None:
        self.close()
        self._steps_down = self._step = 0
        self.adopt(launch)

    def _advised(self, error: SpecchatError) -> SpecchatError:
        lacks_memory = isinstance(error, EngineError) and error.fault is Fault.MEMORY
        if lacks_memory and (advice := self.launch.advice()):
            return EngineError(f"{error}; {advice}", Fault.MEMORY)
        return error

    def _load_with_patience(self) -> Generator[Loading, None, None]:
        launch = self.launch
        settings = replace(launch.settings, speculation=self._speculation, disturbed=self._disturbed)
        self._restoring = False  # a new engine has the draft if there is room
        for attempt in range(1, DEATHS + 1):
            try:
                yield from self._client.load(
                    launch.target,
                    launch.draft,
                    settings,
                    draft_required=launch.draft_required,
                    steps_down=self._steps_down,
                )
                self._step = self.info.steps_down if self.info else 0
                return
            except EngineDied as death:
                self._learn_from(death)
                if attempt == DEATHS:
                    raise
                yield Loading(0, f"{death}; starting it again")

    def _learn_from(self, death: EngineDied) -> None:
        """If memory was the cause the next engine stays below the rung that was tried."""
        if death.memory_suspected:
            self._steps_down = max(self._steps_down, self._step) + 1

    def restore_draft(self) -> Generator[Loading, None, None]:
        """Bring back the draft model that memory did not suffice for, into the running engine.

        Afterwards `info` tells whether it came, or why not. Raises SpecchatError. `send` does this by itself after
        `set_speculation` has asked for a draft.
        """
        self._restoring = False
        self._steps_down = 0
        with self._idle.busy():
            yield from self._client.restore_draft()

    def send(self, text: str) -> Generator[SessionEvent, None, None]:
        """Stream the reply to `text`, waking the engine first (yielding `Loading`) if it is not running.

        Afterwards `messages` ends with the user's turn and the reply, partial if it was stopped, the generator was
        closed, or an error (raised: SpecchatError) cut it short. If no text came at all `messages` is unchanged.
        A `stop` after this call counts, even before the generator is first asked for an event.
        """
        self._stopping.clear()
        return self._stream((*self.messages, Message("user", compose(self.attachments, text))))

    def go_on(self) -> Generator[SessionEvent, None, None]:
        """Stream the rest of the last reply, one that was stopped; `messages` then ends with the whole of it.

        Only the new part is yielded. ValueError if the last message is no reply.
        """
        if not self.messages or self.messages[-1].role != "assistant":
            raise ValueError("there is no reply to go on with")
        self._stopping.clear()
        return self._stream(self.messages, go_on=True)

    def race(
        self, turns: tuple[Message, ...], modes: Sequence[Speculation], most: int
    ) -> Generator[tuple[int, SessionEvent], None, None]:
        """Write a reply to `turns` once with each of `modes`, of at most `most` tokens and with the same seed.

        Yields the events with the index of their mode. The history stays as it is, and what the engine has read of
        the turns is shared by all. No prompt is read on a round's clock, by the draft neither. A `stop` after this
        call ends the running reply, and the race with it.
        """
        self._stopping.clear()
        return self._race(turns, modes, most)

    def _race(
        self, turns: tuple[Message, ...], modes: Sequence[Speculation], most: int
    ) -> Generator[tuple[int, SessionEvent], None, None]:
        sampling = self.options.sampling
        seed = random.getrandbits(31) if sampling.seed is None else sampling.seed
        options = replace(
            self.options,
            max_tokens=min(most, self.options.max_tokens or most),
            draft_first=True,
            sampling=replace(sampling, seed=seed),
        )
        with self._idle.busy():
            for event in self._wake():
                yield 0, event
            try:
                for index, mode in enumerate(modes):
                    if self._stopping.is_set():
                        return
                    self._client.set_speculation(mode)
                    for event in self._events(turns, options):
                        yield index, event
            finally:
                self._client.set_speculation(self._speculation)

    def margin(self, turns: tuple[Message, ...], tokens: Sequence[int]) -> float:
        """How far apart the target's two likeliest logits are after `tokens` of a reply to `turns`.

        Raises EngineError. Not while a reply is written.
        """
        return self._client.margin((*self._system, *turns), self.options, tokens)

    def _stream(self, turns: tuple[Message, ...], go_on: bool = False) -> Generator[SessionEvent, None, None]:
        with self._idle.busy():
            yield from self._wake()
            if self._stopping.is_set():
                yield Finished("cancelled", Figures())
            else:
                yield from self._reply(turns, go_on)

    def _wake(self) -> Generator[SessionEvent, None, None]:
        """An engine, and the draft that was asked for if there is room for it now."""
        if self.info is None:
            yield from self._until_stopped(self.load())
        elif self._restoring and self.info.draft_can_return:
            yield from self.restore_draft()
            if self.info.draft is None:
                yield Notice(f"still without the draft model: {self.info.draft_obstacle}")

    def _reply(self, turns: tuple[Message, ...], go_on: bool) -> Generator[SessionEvent, None, None]:
        reply = Reply()
        try:
            for event in self._events(turns, replace(self.options, continue_last=go_on)):
                reply.add(event)
                yield event
        finally:
            if reply.message is not None:
                self.messages, self.attachments = _with(turns, reply.message, go_on), ()

    @property
    def _system(self) -> tuple[Message, ...]:
        return (Message("system", self.system_prompt),) if self.system_prompt else ()

    def _events(self, turns: tuple[Message, ...], options: ReplyOptions) -> Generator[Event, None, None]:
        try:
            for event in self._client.reply((*self._system, *turns), options):
                if self._stopping.is_set():  # it may have been asked for before the engine knew of this reply
                    self._client.cancel()
                yield event
        except EngineDied as death:
            self._learn_from(death)
            raise

    def _until_stopped(self, loading: Generator[Loading, None, None]) -> Generator[Loading, None, None]:
        with closing(loading):
            for progress in loading:
                yield progress
                if self._stopping.is_set():
                    return

    def stop(self) -> None:
        """End the running reply at the next round; `send` then yields `Finished("cancelled")` and returns."""
        self._stopping.set()
        self._client.cancel()

    def kill(self) -> None:
        """End the engine's process, whatever it is doing; who waits for it gets `EngineKilled`, and keeps what came.

        A later `send` wakes another.
        """
        self._stopping.set()
        self._client.kill()

    def answer_now(self) -> None:
        """End the reasoning of the running reply at the next round; says nothing to a reply that is past it."""
        self._client.answer_now()

    def set_speculation(self, speculation: Speculation) -> None:
        """At once, in the middle of a reply too; kept when the engine is started again.

        Where memory did not suffice for the draft model, asking for it has the next `send` try again.
        """
        self._speculation = speculation
        self._restoring = speculation.mode in (Mode.AUTO, Mode.DRAFT)
        if speculation.mode is Mode.DRAFT:
            self._steps_down = 0
        self._client.set_speculation(speculation)

    def set_disturbed(self, disturbed: bool) -> None:
        """Other work of this program begins beside the engine, or is over: meanwhile nothing is learned from clocks."""
        self._disturbed = disturbed
        self._client.set_disturbed(disturbed)

    def plan(self) -> tuple[str, ...]:
        """Where everything was placed and why, a line each; empty while nothing is loaded."""
        info = self.info
        return info.plan if info else ()

    def count_tokens(self, text: str) -> int:
        """Tokens of `text` by the target's vocabulary. Raises EngineError if no engine is running."""
        return self._client.count(text)

    def close(self) -> None:
        """End the engine's process within a second. A later `send` wakes another."""
        self._idle.stop()
        self._client.close()


def _with(turns: tuple[Message, ...], reply: Message, go_on: bool) -> tuple[Message, ...]:
    """The turns with a reply after them, or written on to the last of them."""
    if not go_on:
        return (*turns, reply)
    last = turns[-1]
    whole = replace(last, content=last.content + reply.content, reasoning=last.reasoning + reply.reasoning)
    return (*turns[:-1], whole)


def compose(attachments: Sequence[Attachment], text: str) -> str:
    """A message with its attachments before it, a blank line between them."""
    named = len(attachments) > 1
    before = [f"{a.name}:\n{a.text.strip()}" if named else a.text.strip() for a in attachments]
    return "\n\n".join(filter(None, (*before, text)))


class Reply:
    """A reply as far as it came, folded from its events."""

    def __init__(self) -> None:
        self.answer = ""
        self.reasoning = ""
        self.notices: list[str] = []
        self.figures = Figures()
        self.finish = ""  # Finished.reason; "" while there was none

    def add(self, event: SessionEvent) -> None:
        """Take in one event."""
        match event:
            case Notice(text=text):
                self.notices.append(text)
            case Generated(pieces=pieces, figures=figures):
                self.figures = figures
                self._extend(pieces)
            case Finished(reason=reason, figures=figures, pieces=pieces):
                self.finish, self.figures = reason, figures
                self._extend(pieces)

    def _extend(self, pieces: Sequence[Piece]) -> None:
        self.answer += "".join(piece.text for piece in pieces if not piece.reasoning)
        self.reasoning += "".join(piece.text for piece in pieces if piece.reasoning)

    @property
    def message(self) -> Message | None:
        """The assistant's turn; None while there is no text."""
        if not self.answer and not self.reasoning:
            return None
        return Message("assistant", self.answer, self.reasoning)
