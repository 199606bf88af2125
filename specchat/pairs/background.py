"""A pull beside a chat: in a process of its own, at low priority, ended within a second.

Contract: `events` yields what `pull` yields and raises SpecchatError as it does; it blocks, so it is for a
thread. `cancel` may be called from any thread and ends `events` quietly; what came so far is kept, because a
pull may be killed at any moment. The process writes nothing to the terminal and ends with this one.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final

import psutil

from specchat import locations
from specchat.errors import SpecchatError
from specchat.pairs.progress import Event

_GRACE: Final = 0.7  # seconds to end helper programs before the process is killed


@dataclass(frozen=True, slots=True)
class _Failure:
    sentence: str


class BackgroundPull:
    """One pull of pairs by name, as the catalogue and the environment name them when it starts."""

    def __init__(self, names: Sequence[str], force: bool = False) -> None:
        # A fresh interpreter: forking a process full of threads and a native library is asking for deadlocks.
        spawn = multiprocessing.get_context("spawn")
        self._receiver, sender = spawn.Pipe(duplex=False)
        self._process = spawn.Process(
            target=_run, args=(sender, tuple(names), force), name="specchat pull", daemon=True
        )
        self._cancelled = False
        # Textual's stand-in for standard error has no descriptor, which spawning would hand on.
        with contextlib.redirect_stderr(sys.__stderr__):
            self._process.start()
        sender.close()

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process.pid is not None
        return self._process.pid

    def events(self) -> Iterator[Event]:
        """What happens, until everything is ready. Raises SpecchatError."""
        while True:
            try:
                said = self._receiver.recv()
            except EOFError:
                if not self._cancelled:
                    raise SpecchatError("the download's process died; pull again to go on from what is here") from None
                return
            if said is None:
                return
            if isinstance(said, _Failure):
                raise SpecchatError(said.sentence)
            yield said

    def cancel(self) -> None:
        """Stop now. Takes less than a second; harmless when it has ended already."""
        self._cancelled = True
        self._process.terminate()
        self._process.join(_GRACE)
        self._process.kill()
        self._process.join()


def _run(sender: Connection, names: Sequence[str], force: bool) -> None:
    """The child's side."""
    _detach()
    from specchat import settings
    from specchat.pairs import catalog as catalogs
    from specchat.pairs import discovery
    from specchat.pairs.library import Library
    from specchat.pairs.pull import pull

    try:
        catalog = catalogs.load()
        places = discovery.places(settings.load().model_dirs)
        pairs = [catalog.pair(name) for name in names]
        events = pull(catalog, Library.default(), pairs, places=places, force=force, gentle=True)
        for number, event in enumerate(events):
            if number == 0:
                _make_way()
            sender.send(event)
        sender.send(None)
    except SpecchatError as error:
        sender.send(_Failure(str(error)))
    except BrokenPipeError:
        pass  # the program that asked is gone


def _make_way() -> None:
    """Let the chat go first from here on, in this thread and those it starts.

    Not sooner: beside a reply that keeps every core busy, what comes before the first event (imports, the connection)
    took 18 s at this priority, and a third of a second's work takes nobody's speed. Later it matters: a hash that
    never ends costs a reply 8 % at 19, and 20 % at 10.
    """
    # The constant is Windows', where niceness is a class.
    psutil.Process().nice(getattr(psutil, "BELOW_NORMAL_PRIORITY_CLASS", 19))


def _detach() -> None:
    # The terminal's Ctrl-C is for the chat. SystemExit unwinds, which ends helper programs such as pip.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    os.dup2(_log() or nowhere, 2)


def _log() -> int | None:
    """Where the traceback of a bug goes."""
    try:
        locations.logs_dir().mkdir(parents=True, exist_ok=True)
        return os.open(locations.logs_dir() / "pull.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:
        return None
