"""One file from the hub onto this disk: resumed, verified, installed.

Contract: the bytes go into `<file>.<version>.part` beside the file's place and stay there whatever ends the
transfer. Only a part whose sha256 is right is renamed, after it was written through to the disk; so the file
is complete and verified or not there. One process works on a file at a time, others wait. Failures are
SpecchatErrors. Runs in a thread: `say` is called with what happens, `stop` ends it at the next chunk or wait.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Final

from specchat import locations
from specchat.errors import SpecchatError
from specchat.pairs import lock
from specchat.pairs.catalog import ModelFile, Part
from specchat.pairs.failures import HubError
from specchat.pairs.hub import Body, Hub, RangeRefusedError, Remote
from specchat.pairs.library import Library, State
from specchat.pairs.progress import Phase, Progress
from specchat.pairs.verifier import Verifier
from specchat.units import format_bytes

Say = Callable[[Progress], None]

_REPORT_EVERY: Final = 0.1  # seconds between two progress values of one file
# EFBIG: a limit on the size of a file, the user's (ulimit) or the file system's (4 GB on FAT32).
_NO_ROOM: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class StoppedError(Exception):
    """The transfer was told to stop; what came so far is kept."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long trouble is borne: times in seconds."""

    asks: int = 2  # attempts at asking about a file, but only one where that took longer than
    quick: float = 5.0  # this: a hub that is down is said within seconds
    tries: int = 5  # attempts in a row that bring no byte
    first_wait: float = 1.0  # doubled after each of those, up to
    longest_wait: float = 8.0
    longest_limit: float = 900.0  # a rate limit that lasts longer is an error instead of a countdown


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file to fetch: where the hub has it, and which part of the library it is. `label` is for people."""

    label: str
    repo: str
    path: str
    revision: str | None
    file: ModelFile
    part: Part


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What all transfers of one pull share. `turn` is held while hashing (see Verifier)."""

    hub: Hub
    library: Library
    stop: threading.Event
    patience: Patience
    turn: AbstractContextManager[object]


def ask(around: Circumstances, wanted: Wanted, say: Say) -> Remote:
    """What the hub says about a file, checked against the catalogue. Raises SpecchatError."""
    say(Progress(wanted.label, Phase.ASKING))
    begun, attempt = time.monotonic(), 0
    while True:
        attempt += 1
        try:
            remote = around.hub.ask(wanted.repo, wanted.path, wanted.revision)
            break
        except HubError as error:
            quick = time.monotonic() - begun < around.patience.quick and attempt < around.patience.asks
            limited = error.wait is not None and attempt <= around.patience.tries
            if not error.passing or not (quick or limited):
                raise
            pause(around, Progress(wanted.label, Phase.WAITING), error, attempt, say)
    _check(wanted, remote)
    say(Progress(wanted.label, Phase.ASKING, 0, remote.size))
    return remote


def _check(wanted: Wanted, remote: Remote) -> None:
    expected = wanted.part.sha256
    if expected is None and remote.sha256 is None:
        raise SpecchatError(
            f"the hub gives no sha256 for {wanted.path} in {wanted.repo}, so it could not be verified; a file "
            "downloaded by other means can be added with its path"
        )
    if expected is not None and remote.sha256 not in (None, expected):
        raise SpecchatError(
            f"{wanted.path} in {wanted.repo} is no longer the file the catalogue describes (its sha256 changed); "
            f"to use the new one, add it under a name of your own: specchat pull --name NAME "
            f"--target hf:{wanted.repo}/{wanted.path}"
        )
    size = wanted.part.bytes
    if size is not None and size != remote.size:
        raise SpecchatError(
            f"{wanted.path} in {wanted.repo} has {remote.size:,} bytes, but [files.{wanted.file.name}] of the "
            f"catalogue says {size:,}, so it would never count as whole: correct bytes there, or leave it out"
        )


def pause(around: Circumstances, base: Progress, error: HubError, attempt: int, say: Say) -> None:
    """Wait before trying again, counting down visibly. Raises the error itself where it lasts too long."""
    patience = around.patience
    seconds = min(patience.longest_wait, patience.first_wait * 2 ** max(0, attempt - 1))
    if error.wait is not None:
        if error.wait > patience.longest_limit:
            minutes = math.ceil(error.wait / 60)
            raise HubError(error.problem, f"it asks to be left alone for {minutes} minutes") from error
        seconds = error.wait
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        say(Progress(base.file, Phase.WAITING, base.done, base.total, error.problem, left))
        if around.stop.wait(min(1.0, left)):
            raise StoppedError


def part_path(target: Path, remote: Remote) -> Path:
    """Where the bytes of this version of the file are gathered."""
    version = "".join(c for c in remote.version if c.isalnum())[:12]
    return target.with_name(f"{target.name}.{version}.part")


class Transfer:
    """One file's way onto the disk; `run` does it."""

    def __init__(self, around: Circumstances, wanted: Wanted, remote: Remote, say: Say) -> None:
        self._around = around
        self._wanted = wanted
        self._remote = remote
        self._say = say
        self._target = around.library.install_path(wanted.part)
        self._part = part_path(self._target, remote)
        self._sha256 = wanted.part.sha256 or remote.sha256 or ""
        self._size = 0  # bytes in the part
        self._reported = 0.0
        self._verifier: Verifier | None = None

    def run(self) -> None:
        """Fetch, verify, install and record the file. Raises SpecchatError, StoppedError."""
        try:
            self._target.parent.mkdir(parents=True, exist_ok=True)
            with lock.held(self._around.library.lock_path(self._wanted.part), self._wait_for):
                if not self._is_here():
                    self._discard_other_versions()
                    self._fetch()
                    self._install()
        except OSError as error:
            raise self._explained(error) from error
        self._tell(Phase.DONE, self._remote.size)

    def _wait_for(self, who: str) -> None:
        if self._around.stop.is_set():
            raise StoppedError
        note = f"{who} is downloading it"
        self._say(Progress(self._wanted.label, Phase.WAITING, 0, self._remote.size, note))

    def _is_here(self) -> bool:
        """Whether another process installed it while we waited."""
        parts = self._around.library.status(self._wanted.file).parts
        return any(found.part == self._wanted.part and found.state is State.READY for found in parts)

    def _discard_other_versions(self) -> None:
        for other in self._around.library.partials(self._wanted.part):
            if other != self._part:
                self._tell(Phase.DOWNLOADING, 0, "it changed on the hub since the last run: starting again")
                other.unlink(missing_ok=True)

    # -- fetching -----------------------------------------------------------------------------------------

    def _fetch(self) -> None:
        """Have the whole part on disk with the right hash, or raise."""
        self._size = self._part.stat().st_size if self._part.exists() else 0
        resumed = self._size > 0
        while not self._fetched():
            self._part.unlink(missing_ok=True)
            self._size = 0
            if not resumed:
                raise SpecchatError(
                    f"{self._wanted.label} arrived damaged (its sha256 is not the one it should have) and was "
                    "thrown away: pull again, and if that repeats use another network or mirror (HF_ENDPOINT)"
                )
            self._tell(Phase.DOWNLOADING, 0, "what an earlier run left was damaged: starting again")
            resumed = False

    def _fetched(self) -> bool:
        """Receive what is missing; whether the hash is right then."""
        self._part.touch()
        if self._size > self._remote.size:
            self._truncate()
        try:
            self._follow()
            self._receive()
            return self._verified()
        finally:
            self._unfollow()

    def _follow(self) -> None:
        self._verifier = Verifier(self._part, self._around.turn)
        self._verifier.extend(self._size)
        self._verifier.start()

    def _unfollow(self) -> None:
        if self._verifier is not None:
            self._verifier.close()
            self._verifier.join()
            self._verifier = None

    def _receive(self) -> None:
        """Bring the part to its full size, through as many answers as that takes."""
        barren = 0
        while self._size < self._remote.size:
            before = self._size
            try:
                self._read_on()
                problem = HubError(
                    f"{self._around.hub.host} ends {self._wanted.label} too early",
                    "pull again to go on",
                    passing=True,
                )
            except RangeRefusedError as refusal:
                self._start_again(f"{refusal}: starting again")
                problem = refusal
            except HubError as error:
                if not error.passing:
                    raise
                problem = error
            if self._size == self._remote.size:
                return
            barren = 0 if self._size > before else barren + 1
            if barren >= self._around.patience.tries:
                raise problem
            if not isinstance(problem, RangeRefusedError) or barren > 1:
                pause(self._around, self._now(Phase.WAITING), problem, barren, self._say)

    def _read_on(self) -> None:
        """One answer's bytes onto the end of the part."""
        with self._around.hub.read(self._remote, self._size) as body:
            self._tell(Phase.DOWNLOADING, self._size)
            if body.offset != self._size:
                self._start_again("the server cannot resume: starting again")
            self._append(body)

    def _append(self, body: Body) -> None:
        with self._part.open("ab", buffering=0) as stream:
            for chunk in body.chunks:
                if self._around.stop.is_set():
                    raise StoppedError
                # Bytes beyond the promised size are not the file's; the hash says whether the others are.
                self._write(stream, memoryview(chunk)[: self._remote.size - self._size])
                if self._verifier is not None:
                    self._verifier.extend(self._size)
                if time.monotonic() - self._reported >= _REPORT_EVERY:
                    self._tell(Phase.DOWNLOADING, self._size)
                if self._size == self._remote.size:
                    return

    def _write(self, stream: FileIO, chunk: memoryview) -> None:
        while chunk:
            try:
                count = stream.write(chunk)
            except OSError as error:
                if error.errno in _NO_ROOM:
                    raise self._no_room(error) from error
                raise
            self._size += count
            chunk = chunk[count:]

    def _start_again(self, note: str) -> None:
        self._tell(Phase.DOWNLOADING, 0, note)
        self._unfollow()
        self._truncate()
        self._follow()

    def _truncate(self) -> None:
        os.truncate(self._part, 0)
        self._size = 0

    # -- verifying and installing -------------------------------------------------------------------------

    def _verified(self) -> bool:
        verifier = self._verifier
        assert verifier is not None
        self._tell(Phase.VERIFYING, verifier.hashed)
        while (actual := verifier.finish(self._remote.size, _REPORT_EVERY)) is None:
            if self._around.stop.is_set():
                raise StoppedError
            self._tell(Phase.VERIFYING, verifier.hashed)
        return actual == self._sha256

    def _install(self) -> None:
        self._tell(Phase.INSTALLING, self._remote.size)
        _sync_file(self._part)
        self._part.replace(self._target)
        _sync_folder(self._target.parent)
        self._around.library.record(self._wanted.part, self._sha256)

    # -- saying -------------------------------------------------------------------------------------------

    def _now(self, phase: Phase, note: str = "") -> Progress:
        return Progress(self._wanted.label, phase, self._size, self._remote.size, note)

    def _tell(self, phase: Phase, done: int, note: str = "") -> None:
        self._reported = time.monotonic()
        self._say(Progress(self._wanted.label, phase, done, self._remote.size, note))

    def _no_room(self, error: OSError) -> SpecchatError:
        folder = locations.tilde(self._target.parent)
        missing = format_bytes(self._remote.size - self._size)
        if error.errno == errno.EFBIG:
            return SpecchatError(
                f"{folder} takes no file of {format_bytes(self._remote.size)} (it stopped at "
                f"{format_bytes(self._size)}): FAT32 disks and `ulimit -f` set such limits; move the models folder "
                "(SPECCHAT_HOME) or lift the limit, then pull again"
            )
        free = format_bytes(shutil.disk_usage(self._target.parent).free)
        return SpecchatError(
            f"the disk is full: {missing} of {self._wanted.label} are still to come and {folder} has {free} free; "
            "make room, then pull again to go on from what is here"
        )

    def _explained(self, error: OSError) -> SpecchatError:
        if error.errno in _NO_ROOM:
            return self._no_room(error)
        where = locations.tilde(error.filename or self._target)
        return SpecchatError(f"cannot write {where}: {error.strerror or error}")


def _sync_file(path: Path) -> None:
    with path.open("r+b") as stream:
        os.fsync(stream.fileno())


def _sync_folder(path: Path) -> None:
    """Make a rename last through a power cut. Windows cannot, and some file systems refuse."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
