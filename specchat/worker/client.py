"""The parent's side of the engine's process: start it, stream from it, cancel, survive its death.

Contract: `load` and `reply` are blocking generators for one thread at a time; every other method may be called from
any thread at any time, and but for `count` and `margin`, which wait for an answer, none waits for a child that hangs.
When the child dies, whoever waits gets `EngineDied`; `load` starts another. No name of llama.cpp is imported here.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Final, TypeAlias

from specchat.engine.policy import Speculation
from specchat.engine.replies import Event, Finished, Message, ReplyOptions
from specchat.errors import SpecchatError
from specchat.worker import autopsy, logs
from specchat.worker.protocol import (
    Answer,
    AnswerNow,
    Ask,
    Cancel,
    Changed,
    Count,
    Counted,
    Emitted,
    EngineInfo,
    Failed,
    Fault,
    Load,
    Loaded,
    Loading,
    LoadSettings,
    Margin,
    Quit,
    Request,
    RestoreDraft,
    SetDisturbed,
    SetSpeculation,
    Weighed,
    read_answer,
    write,
)

_GRACE: Final = 0.7  # seconds the child has to end by itself before it is killed
_DYING: Final = 10.0  # seconds a crash may take from closing its pipe (ggml prints a backtrace first)


class EngineError(SpecchatError):
    """The engine refused or failed; its process lives on."""

    def __init__(self, sentence: str, fault: Fault = Fault.INPUT) -> None:
        super().__init__(sentence)
        self.fault = fault


class TooLong(EngineError):
    """The context is too short for what was asked."""

    option = "-c"


class EngineDied(EngineError):
    """The engine's process ended by itself. `memory_suspected`: it was probably killed for the memory it took."""

    def __init__(self, sentence: str, log: Path, memory_suspected: bool) -> None:
        super().__init__(sentence, Fault.INTERNAL)
        self.log = log
        self.memory_suspected = memory_suspected


class EngineClosed(EngineError):
    """`close` was called while somebody waited for the engine."""


class EngineKilled(EngineClosed):
    """`kill` was called while somebody waited for the engine."""


_Delivery: TypeAlias = Answer | EngineError  # an EngineError is the last thing delivered


class _Child:
    """One process, the thread that reads its answers, and the queues of those who wait for them.

    `unattended` is told of a death that nobody is waiting to hear of.
    """

    def __init__(self, unattended: Callable[[EngineDied], None]) -> None:
        self.log = logs.new()
        self._unattended = unattended
        self._oom_kills = autopsy.oom_kills()
        with self.log.open("ab") as log:
            logs.hold(log)
            self.process = subprocess.Popen(
                # -P: the folder specchat was started in must not shadow the child's modules.
                [sys.executable, "-P", "-m", "specchat.worker.process", str(self.log)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._lock = threading.Lock()  # guards _waiting and _end
        self._requests: SimpleQueue[Request | None] = SimpleQueue()  # None: the last has been sent
        self._waiting: dict[int, SimpleQueue[_Delivery]] = {}
        self._end: EngineError | None = None
        self._wanted: EngineClosed | None = None  # the end that was asked for
        self.info: EngineInfo | None = None  # what is loaded, as it last said
        threading.Thread(target=self._read, name="engine answers", daemon=True).start()
        threading.Thread(target=self._write, name="engine requests", daemon=True).start()

    @property
    def alive(self) -> bool:
        return self._end is None

    def send(self, request: Request) -> None:
        """Have a request written. One that the dead child never reads is answered by the reading thread."""
        self._requests.put(request)

    def _write(self) -> None:
        """In a thread of its own: a child that hangs reads nothing, and a full pipe keeps whoever writes waiting."""
        assert self.process.stdin is not None
        with suppress(OSError), self.process.stdin as stream:
            while (request := self._requests.get()) is not None:
                write(stream, request)

    def answers(self, request: Load | Ask | Count | Margin | RestoreDraft) -> Generator[Answer, None, None]:
        """Send a request and yield its answers up to the last. Raises EngineError."""
        arrived: SimpleQueue[_Delivery] = SimpleQueue()
        with self._lock:
            if self._end is not None:
                raise self._end
            self._waiting[request.id] = arrived
        try:
            self.send(request)
            while True:
                match arrived.get():
                    case EngineError() as error:
                        raise error
                    case Failed(sentence=sentence, fault=fault):
                        raise (TooLong if fault is Fault.LENGTH else EngineError)(sentence, fault)
                    case answer:
                        yield answer
                        if _is_last(answer):
                            return
        finally:
            with self._lock:
                self._waiting.pop(request.id, None)

    def _read(self) -> None:
        assert self.process.stdout is not None
        # A child that dies in the middle of a message leaves a torn pickle, and that may raise anything.
        with suppress(Exception), self.process.stdout as stream:
            while True:
                answer = read_answer(stream)
                if isinstance(answer, Loaded | Changed):
                    self.info = answer.info
                with self._lock:
                    queue = self._waiting.get(answer.id)
                if queue is not None:  # else: nobody wants the rest of an abandoned reply
                    queue.put(answer)
        self._over(self._autopsy(self._wait(_DYING)))

    def _over(self, end: EngineError) -> None:
        """Tell everybody of the end, once."""
        with self._lock:
            if self._end is not None:
                return
            self._end = end
            waiting = tuple(self._waiting.values())
            for queue in waiting:
                queue.put(end)
        self._requests.put(None)
        if not waiting and isinstance(end, EngineDied):
            self._unattended(end)

    def _autopsy(self, status: int | None) -> EngineError:
        if self._wanted is not None:
            return self._wanted
        log = logs.keep(self.log)
        finding = autopsy.examine(status, self._oom_kills, log)
        return EngineDied(finding.sentence, log, finding.memory_suspected)

    def end(self) -> None:
        """Ask the process to end, kill it if it does not, and wait until it is gone."""
        self._wanted = end = self._wanted or EngineClosed("the engine was closed")
        self.send(Quit())
        self._requests.put(None)
        self._wait(_GRACE)
        self._over(end)

    def kill(self) -> None:
        """End the process, whatever it is doing."""
        self._wanted = end = EngineKilled("you ended the engine, which did not answer")
        self.process.kill()
        self._wait(_GRACE)
        self._over(end)

    def _wait(self, seconds: float) -> int | None:
        """The exit status; None where the process took longer than that and was killed."""
        try:
            return self.process.wait(seconds)
        except BaseException as error:  # a second Ctrl+C too: no process stays behind
            self.process.kill()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
        with suppress(subprocess.TimeoutExpired):  # a driver may hold a killed process for as long as it likes
            self.process.wait(_GRACE)
        return None


def _is_last(answer: Answer) -> bool:
    match answer:
        case Loaded() | Counted() | Weighed() | Emitted(event=Finished()):
            return True
        case _:
            return False


class Client:
    """One engine process at a time.

    `on_death` is called, in a thread of its own, when the process dies while nobody waits for it: no call raises then.
    """

    on_death: Callable[[EngineDied], None]

    def __init__(self) -> None:
        self.on_death = lambda _: None
        self._lock = threading.Lock()  # guards _child
        self._child: _Child | None = None
        self._numbers = itertools.count(1)
        self._last_ask = 0

    @property
    def info(self) -> EngineInfo | None:
        """What is loaded; None before `load` has ended, and after the process ended."""
        child = self._child
        return child.info if child is not None and child.alive else None

    @property
    def pid(self) -> int | None:
        """The engine's process, while there is one."""
        child = self._child
        return child.process.pid if child is not None and child.alive else None

    def load(
        self,
        target: Path,
        draft: Path | None,
        settings: LoadSettings,
        *,
        draft_required: bool = False,
        steps_down: int = 0,
    ) -> Generator[Loading, None, None]:
        """Start the process if there is none and load the models into it; afterwards `info` tells what is loaded.

        `steps_down` leaves out the plan's first rungs, which ended an earlier process. Raises EngineError (a file that
        is no model, say) or EngineDied. Closing the generator ends the process.
        """
        with self._lock:
            if self._child is None or not self._child.alive:
                self._child = _Child(lambda death: self.on_death(death))
            child = self._child
        child.info = None
        request = Load(next(self._numbers), target, draft, draft_required, settings, child.log, steps_down)
        try:
            for answer in child.answers(request):
                if isinstance(answer, Loading):
                    yield answer
        except EngineError:
            raise
        except BaseException:  # closed, or Ctrl+C: a load cannot be interrupted otherwise
            self.close()
            raise

    def reply(self, messages: Sequence[Message], options: ReplyOptions) -> Generator[Event, None, None]:
        """Stream a reply; the last event is a `Finished`. Closing the generator cancels the reply.

        Raises EngineError (a prompt longer than the context, say) or EngineDied.
        """
        child = self._running()
        self._last_ask = number = next(self._numbers)
        try:
            for answer in child.answers(Ask(number, tuple(messages), options)):
                if isinstance(answer, Emitted):
                    yield answer.event
        finally:
            child.send(Cancel(number))  # where the reply is over this says nothing

    def cancel(self) -> None:
        """Stop the running reply at the next round or batch: it ends with `Finished("cancelled")`."""
        child = self._child
        if child is not None:
            child.send(Cancel(self._last_ask))

    def answer_now(self) -> None:
        """End the running reply's reasoning at the next round."""
        child = self._child
        if child is not None:
            child.send(AnswerNow(self._last_ask))

    def set_speculation(self, speculation: Speculation) -> None:
        """From the next round on, in the middle of a reply too."""
        child = self._child
        if child is not None:
            child.send(SetSpeculation(speculation))

    def set_disturbed(self, disturbed: bool) -> None:
        """Whether other work of this program runs beside the engine: what passes take then is not learned from."""
        child = self._child
        if child is not None:
            child.send(SetDisturbed(disturbed))

    def restore_draft(self) -> Generator[Loading, None, None]:
        """Bring the draft back that memory did not suffice for; afterwards `info` tells whether it came.

        Raises EngineError or EngineDied. The conversation stays in the target's cache.
        """
        for answer in self._running().answers(RestoreDraft(next(self._numbers))):
            if isinstance(answer, Loading):
                yield answer

    def count(self, text: str) -> int:
        """Tokens of `text` by the target's vocabulary. Raises EngineError if no model is loaded."""
        for answer in self._running().answers(Count(next(self._numbers), text)):
            if isinstance(answer, Counted):
                return answer.tokens
        raise AssertionError("a count is always answered")

    def margin(self, messages: Sequence[Message], options: ReplyOptions, tokens: Sequence[int]) -> float:
        """How far apart the target's two likeliest logits are after `tokens` of a reply to `messages`.

        Raises EngineError or EngineDied.
        """
        request = Margin(next(self._numbers), tuple(messages), options, tuple(tokens))
        for answer in self._running().answers(request):
            if isinstance(answer, Weighed):
                return answer.margin
        raise AssertionError("a margin is always answered")

    def close(self) -> None:
        """End the process, within a second, and give its memory back. `load` may start another."""
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.end()

    def kill(self) -> None:
        """End the process whatever it is doing, and at once; whoever waits for it gets `EngineKilled`."""
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.kill()

    def _running(self) -> _Child:
        child = self._child
        if child is None:
            raise EngineError("the engine is not running")
        return child
