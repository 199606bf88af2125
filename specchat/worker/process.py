"""The child's side of the engine's process: `python -m specchat.worker.process LOG`.

Contract: requests come as pickles on standard input, answers leave as pickles on what was standard output; whatever
else is written to descriptors 1 and 2 (llama.cpp's own output, tracebacks) goes to the log file that the parent
opened as descriptor 2. The main thread runs the engine; a second thread reads requests, so that cancelling and
changing the speculation take effect at the next round. When the parent ends, for whatever reason, so does this
process, at once. An error in the engine is answered with `Failed`; the process lives on.

The environment variable SPECCHAT_ENGINE names another factory ("module:function") than
`specchat.worker.loader:load_engine`; its signature is `LoadEngine`.
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
from queue import SimpleQueue
from typing import IO, Final, Protocol, TypeAlias

from specchat import locations
from specchat.engine.chat import Event, Message, ReplyOptions
from specchat.engine.policy import Speculation
from specchat.errors import SpecchatError
from specchat.worker.protocol import (
    Answer,
    Ask,
    Cancel,
    Count,
    Counted,
    Emitted,
    EngineInfo,
    Failed,
    Fault,
    Load,
    Loaded,
    Loading,
    Quit,
    SetSpeculation,
    read_request,
    write,
)

FACTORY_VARIABLE: Final = "SPECCHAT_ENGINE"
FACTORY: Final = "specchat.worker.loader:load_engine"
_LOG_LIMIT: Final = 8 << 20  # bytes; a longer log is started anew


class EngineLike(Protocol):
    """What this process needs of `specchat.engine.chat.Engine`; tests script others."""

    speculation: Speculation

    def reply(self, messages: Sequence[Message], options: ReplyOptions) -> Generator[Event, None, None]:
        """Stream a reply; the last event is a `Finished`, also where the factory's `cancelled` came true."""

    def count_tokens(self, text: str) -> int:
        """Tokens of `text`."""

    def close(self) -> None:
        """Give the memory back."""


Progress: TypeAlias = Callable[[str, float | None], None]
LoadEngine: TypeAlias = Callable[[Load, Progress, Callable[[], bool]], tuple[EngineLike, EngineInfo]]


class Worker:
    """Serves one parent. `load` makes an engine of a `Load`."""

    def __init__(self, requests: IO[bytes], answers: IO[bytes], load: LoadEngine, log: str) -> None:
        self._requests, self._answers = requests, answers
        self._load_engine, self._log = load, log
        self._inbox: SimpleQueue[Load | Ask | None] = SimpleQueue()  # None: look at the counts
        self._counts: deque[Count] = deque()
        self._cancelled_up_to = 0
        self._current = 0
        self._speculation = Speculation()
        self._engine: EngineLike | None = None

    def run(self) -> None:
        """Serve requests one after the other until the process ends."""
        threading.Thread(target=self._read, name="requests", daemon=True).start()
        while True:
            request = self._inbox.get()
            if request is None:
                self._answer_counts()
                continue
            try:
                self._current = request.id
                self._load(request) if isinstance(request, Load) else self._reply(request)
            except SpecchatError as error:
                self._send(Failed(request.id, str(error)))
            except Exception as error:
                self._send(self._internal(request.id, error))
            finally:
                _trim_log()

    def _read(self) -> None:
        """Take requests as they come, in a thread of its own; end the process when there can be no more."""
        try:
            while True:
                match read_request(self._requests):
                    case Cancel(id=number):
                        self._cancelled_up_to = max(self._cancelled_up_to, number)
                    case SetSpeculation(speculation=speculation):
                        self._speculate(speculation)
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

    def _load(self, load: Load) -> None:
        if self._engine is not None:
            engine, self._engine = self._engine, None
            engine.close()
        self._speculation = load.settings.speculation
        self._engine, info = self._load_engine(load, self._progress(load.id), self._is_cancelled)
        self._engine.speculation = self._speculation  # it may have changed while the models were read
        self._send(Loaded(load.id, info))

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


def _factory(name: str) -> LoadEngine:
    """A factory that imports the real one when it is first called: an import that fails is answered, not fatal."""
    module, _, function = name.partition(":")

    def load(request: Load, progress: Progress, cancelled: Callable[[], bool]) -> tuple[EngineLike, EngineInfo]:
        progress("starting the engine", None)
        make: LoadEngine = getattr(importlib.import_module(module), function)
        return make(request, progress, cancelled)

    return load


def main() -> None:
    """Serve the parent on standard input and output."""
    # Ctrl+C reaches every process of the terminal; what it means is the parent's to decide.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, answers = _take_pipes()
    faulthandler.enable()
    factory = _factory(os.environ.get(FACTORY_VARIABLE, FACTORY))
    Worker(requests, answers, factory, locations.tilde(sys.argv[1])).run()


if __name__ == "__main__":
    main()
