"""The child's side of the engine's process: `python -m specchat.worker.process LOG`.

Contract: requests come as pickles on standard input, answers leave as pickles on what was standard output; whatever
else is written to descriptors 1 and 2 (llama.cpp's own output, tracebacks) goes to the log file that the parent
opened as descriptor 2. The main thread runs the engine; a second thread reads requests, so that cancelling and
changing the speculation take effect at the next round. When the parent ends, for whatever reason, so does this
process, at once. An error in the engine is answered with `Failed`; the process lives on.

The environment variable SPECCHAT_ENGINE names another factory ("module:function") than
`specchat.worker.loader:load_engine`; see `Factory`.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import IO, Any, Final, Protocol, TypeAlias

from specchat import locations
from specchat.engine.policy import Speculation
from specchat.engine.replies import Event, Message, ReplyOptions
from specchat.errors import SpecchatError
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
    Margin,
    Quit,
    RestoreDraft,
    SetDisturbed,
    SetSpeculation,
    Weighed,
    read_request,
    write,
)

FACTORY_VARIABLE: Final = "SPECCHAT_ENGINE"
FACTORY: Final = "specchat.worker.loader:load_engine"
RESTORE: Final = "restore_draft"  # the function beside the factory that brings a draft back
_IDLE: Final = 5.0  # seconds between two looks at the memory while nobody asks for anything
_LOG_LIMIT: Final = 8 << 20  # bytes; a longer log is started anew


class EngineLike(Protocol):
    """What this process needs of `specchat.engine.chat.Engine`; tests script others."""

    speculation: Speculation
    disturbed: bool

    def reply(self, messages: Sequence[Message], options: ReplyOptions) -> Generator[Event, None, None]:
        """Stream a reply; the last event is a `Finished`, also where the factory's `cancelled` came true."""

    def count_tokens(self, text: str) -> int:
        """Tokens of `text`."""

    def margin(self, messages: Sequence[Message], options: ReplyOptions, tokens: Sequence[int]) -> float:
        """How far apart the two likeliest logits are after `tokens` of a reply."""

    def answer_now(self) -> None:
        """End the running reply's reasoning at the next round."""

    @property
    def has_draft(self) -> bool:
        """Whether there is a draft model now."""

    @property
    def draft_failure(self) -> str:
        """Why it had to be given up, other than for want of memory."""

    def relieve(self) -> bool:
        """Release the draft if memory is short, and say so in the next reply. True if that was so."""

    def close(self) -> None:
        """Give the memory back."""


Progress: TypeAlias = Callable[[str, float | None], None]
Cancelled: TypeAlias = Callable[[], bool]


class Factory(Protocol):
    """Where engines come from: `specchat.worker.loader`, or a test's."""

    def load(self, request: Load, progress: Progress, cancelled: Cancelled) -> tuple[EngineLike, EngineInfo]:
        """Load what is asked for. Raises SpecchatError."""

    def restore(
        self, engine: EngineLike, info: EngineInfo, request: Load, progress: Progress, cancelled: Cancelled
    ) -> EngineInfo:
        """Bring the request's draft back into a running engine, if memory suffices; what is loaded then."""


class Worker:
    """Serves one parent with engines from `factory`."""

    def __init__(self, requests: IO[bytes], answers: IO[bytes], factory: Factory, log: str) -> None:
        self._requests, self._answers = requests, answers
        self._factory, self._log = factory, log
        self._inbox: SimpleQueue[Load | Ask | Margin | RestoreDraft | None] = SimpleQueue()  # None: look at the counts
        self._counts: deque[Count] = deque()
        self._cancelled_up_to = 0
        self._current = 0
        self._speculation = Speculation()
        self._disturbed = False
        self._engine: EngineLike | None = None
        self._loaded_by: Load | None = None
        self._info: EngineInfo | None = None

    def run(self) -> None:
        """Serve requests one after the other until the process ends."""
        threading.Thread(target=self._read, name="requests", daemon=True).start()
        while True:
            try:
                request = self._inbox.get(timeout=_IDLE)
            except Empty:
                if self._engine is not None and self._engine.relieve():
                    self._tell_of_released_draft()
                continue
            if request is None:
                self._answer_counts()
                continue
            try:
                self._current = request.id
                self._serve(request)
            except SpecchatError as error:
                self._send(Failed(request.id, str(error), _fault(error)))
            except Exception as error:
                self._send(self._internal(request.id, error))
            finally:
                _trim_log()

    def _serve(self, request: Load | Ask | Margin | RestoreDraft) -> None:
        match request:
            case Load():
                self._load(request)
            case Ask():
                self._reply(request)
            case Margin():
                margin = self._loaded().margin(request.messages, request.options, request.tokens)
                self._send(Weighed(request.id, margin))
            case RestoreDraft():
                self._restore(request)

    def _read(self) -> None:
        """Take requests as they come, in a thread of its own; end the process when there can be no more."""
        try:
            while True:
                match read_request(self._requests):
                    case Cancel(id=number):
                        self._cancelled_up_to = max(self._cancelled_up_to, number)
                    case AnswerNow(id=number):
                        if self._engine is not None and number == self._current:
                            self._engine.answer_now()
                    case SetSpeculation(speculation=speculation):
                        self._speculate(speculation)
                    case SetDisturbed(disturbed=disturbed):
                        self._disturb(disturbed)
                    case Count() as count:
                        self._counts.append(count)
                        self._inbox.put(None)
                    case Quit():
                        break
                    case request:
                        self._inbox.put(request)
        except (EOFError, OSError):
            pass  # the parent is gone
        except BaseException:
            traceback.print_exc()
        finally:
            # The main thread may be deep inside a native call, so nobody can be asked to return first.
            os._exit(0)

    def _speculate(self, speculation: Speculation) -> None:
        self._speculation = speculation
        if self._engine is not None:
            self._engine.speculation = speculation

    def _disturb(self, disturbed: bool) -> None:
        self._disturbed = disturbed
        if self._engine is not None:
            self._engine.disturbed = disturbed

    def _load(self, load: Load) -> None:
        if self._engine is not None:
            engine, self._engine = self._engine, None
            engine.close()
        self._speculation, self._disturbed = load.settings.speculation, load.settings.disturbed
        self._engine, info = self._factory.load(load, self._progress(load.id), self._is_cancelled)
        # They may have changed while the models were read.
        self._engine.speculation, self._engine.disturbed = self._speculation, self._disturbed
        self._loaded_by, self._info = load, info
        self._send(Loaded(load.id, info))

    def _restore(self, request: RestoreDraft) -> None:
        engine = self._loaded()
        assert self._loaded_by is not None
        assert self._info is not None
        progress = self._progress(request.id)
        self._info = self._factory.restore(engine, self._info, self._loaded_by, progress, self._is_cancelled)
        self._send(Loaded(request.id, self._info))

    def _tell_of_released_draft(self) -> None:
        assert self._info is not None
        failure = self._engine.draft_failure if self._engine is not None else ""
        obstacle = failure or "the draft model was released because memory ran short"
        lines = (*self._info.plan, f"since then {obstacle}")
        self._info = replace(self._info, draft=None, draft_obstacle=obstacle, draft_can_return=True, plan=lines)
        self._send(Changed(self._info))

    def _progress(self, number: int) -> Progress:
        last: tuple[str, int | None] = ("", None)

        def report(stage: str, fraction: float | None) -> None:
            nonlocal last
            step = (stage, None if fraction is None else int(fraction * 100))
            if step != last:  # llama.cpp reports every tensor
                last = step
                self._send(Loading(number, stage, fraction))

        return report

    def _reply(self, ask: Ask) -> None:
        with closing(self._loaded().reply(ask.messages, ask.options)) as events:
            for event in events:
                self._send(Emitted(ask.id, event))
                self._answer_counts()
                self._check_draft()

    def _check_draft(self) -> None:
        has_draft = self._engine is not None and self._engine.has_draft
        if self._info is not None and self._info.draft is not None and not has_draft:
            self._tell_of_released_draft()

    def _answer_counts(self) -> None:
        while self._counts:
            count = self._counts.popleft()
            try:
                self._send(Counted(count.id, self._loaded().count_tokens(count.text)))
            except SpecchatError as error:
                self._send(Failed(count.id, str(error)))
            except Exception as error:
                self._send(self._internal(count.id, error))

    def _loaded(self) -> EngineLike:
        if self._engine is None:
            raise SpecchatError("no model is loaded")
        return self._engine

    def _is_cancelled(self) -> bool:
        return self._current <= self._cancelled_up_to

    def _internal(self, number: int, error: Exception) -> Failed:
        traceback.print_exc()
        what = " ".join(f"{type(error).__name__}: {error}".split())
        return Failed(number, f"internal error in the engine ({what}); its log is {self._log}", Fault.INTERNAL)

    def _send(self, answer: Answer) -> None:
        try:
            write(self._answers, answer)
        except OSError:
            os._exit(0)  # nobody reads any more


def _fault(error: SpecchatError) -> Fault:
    # By their names: OutOfMemory itself lives where llama.cpp is loaded.
    return {"OutOfMemory": Fault.MEMORY, "PromptTooLong": Fault.LENGTH}.get(type(error).__name__, Fault.INPUT)


def _trim_log() -> None:
    if os.fstat(2).st_size > _LOG_LIMIT:
        os.ftruncate(2, 0)  # it was opened for appending: writing goes on at the new end


def _take_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """The two pipes for our own use; descriptors 0 and 1 become harmless for everybody else's."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, answers


class _Named:
    """A factory under its name, imported when it is first called: an import that fails is answered, not fatal."""

    def __init__(self, name: str) -> None:
        self._module, _, self._function = name.partition(":")

    def load(self, request: Load, progress: Progress, cancelled: Cancelled) -> tuple[EngineLike, EngineInfo]:
        progress("starting the engine", None)
        loaded: tuple[EngineLike, EngineInfo] = self._named(self._function)(request, progress, cancelled)
        return loaded

    def restore(
        self, engine: EngineLike, info: EngineInfo, request: Load, progress: Progress, cancelled: Cancelled
    ) -> EngineInfo:
        restored: EngineInfo = self._named(RESTORE)(engine, info, request, progress, cancelled)
        return restored

    def _named(self, name: str) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(importlib.import_module(self._module), name)
        return function


def main() -> None:
    """Serve the parent on standard input and output."""
    # Ctrl+C reaches every process of the terminal; what it means is the parent's to decide.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, answers = _take_pipes()
    faulthandler.enable()
    # ggml would have a debugger look at this process before it aborts: seconds, and most of the log.
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    factory = _Named(os.environ.get(FACTORY_VARIABLE, FACTORY))
    Worker(requests, answers, factory, locations.tilde(sys.argv[1])).run()


if __name__ == "__main__":
    main()
