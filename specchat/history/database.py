"""A connection to the file of conversations: opened, checked, migrated, and with errors in sentences.

Contract: `open_database` never changes or removes a file it cannot use. A damaged one is renamed with the time (its
write-ahead log with it) and a new one begun; one of a newer version, or of another program, is refused. Files and
folders made here can be read by their owner alone.

WAL with synchronous=NORMAL: what a call has committed survives the death of the process at any moment. A power
cut may take the last moments with it, but never the file's integrity.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from specchat import locations
from specchat.history import schema
from specchat.history.values import HistoryError, SetAside

BUSY_TIMEOUT: Final = 5.0  # seconds; every transaction of ours takes a few milliseconds
OPENING_TIMEOUT: Final = 15.0  # seconds; a large file may be searched for damage or migrated meanwhile
_DAMAGE: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class _DamageError(Exception):
    """The file is not a sound database."""


def open_database(path: Path | None) -> tuple[sqlite3.Connection, SetAside | None]:
    """A connection in autocommit mode, usable from any thread (one at a time), and what was set aside, if anything.

    None opens a database in memory, gone when it is closed. Raises HistoryError.
    """
    if path is None:
        return _connect(None), None
    with explained(path), _alone(path):
        _prepare(path)
        try:
            _inspect(path)
            return _connect(path), None
        except _DamageError as damage:
            aside = SetAside(_rename(path), str(damage))
            _prepare(path)
            return _connect(path), aside


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Windows open the file one after the other: two that found it damaged must not both move it away."""
    if path.is_dir():
        raise HistoryError(f"cannot keep conversations in {_name(path)}: it is a folder")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = path.with_name(f"{path.name}.lock")
    try:
        with FileLock(lock, timeout=OPENING_TIMEOUT, mode=0o600, poll_interval=0.01):
            yield
    except Timeout as error:
        raise HistoryError(f"another program keeps {_name(lock)} locked: close it, then try again") from error


def identity(path: Path | None) -> tuple[int, int] | None:
    """What tells the file from another one of its name: device and inode. None where there is no file."""
    try:
        found = path.stat() if path else None
    except FileNotFoundError:
        return None
    return (found.st_dev, found.st_ino) if found else None


def must_be(path: Path | None, known: tuple[int, int] | None) -> None:
    """Raise HistoryError unless `path` still is the file `known`.

    SQLite itself writes on into a file that was moved or deleted under it, and what it writes is never seen again. Only
    without a write-ahead log it looks, in the same way (`fileHasMoved` in its os_unix.c).
    """
    if identity(path) != known:
        raise HistoryError(f"{_name(path)} was moved or deleted while it was in use: start again to have a new one")


@contextmanager
def explained(path: Path | None) -> Iterator[None]:
    """Turn errors of SQLite and the file system into a HistoryError of one sentence."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        sentence = _sentence(error, path)
        if sentence is None:
            raise
        raise HistoryError(sentence) from error
    except OSError as error:
        raise HistoryError(f"cannot keep conversations in {_name(path)}: {error.strerror or error}") from error


def _name(path: Path | None) -> str:
    return locations.tilde(path) if path else "memory"


def _sentence(error: sqlite3.DatabaseError, path: Path | None) -> str | None:
    """What to tell the person; None where the error can only be a mistake of ours."""
    where = _name(path)
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary code: extended ones add detail above it
    return {
        sqlite3.SQLITE_FULL: f"the disk that holds {where} is full: free some space, then try again",
        sqlite3.SQLITE_READONLY: f"cannot write to {where}: the file or its disk is read-only",
        sqlite3.SQLITE_BUSY: f"another program keeps {where} locked: close it, then try again",
        sqlite3.SQLITE_LOCKED: f"another program keeps {where} locked: close it, then try again",
        sqlite3.SQLITE_CANTOPEN: f"cannot open {where}: may you write to it and its folder?",
        sqlite3.SQLITE_PERM: f"cannot open {where}: may you write to it and its folder?",
        sqlite3.SQLITE_IOERR: f"reading or writing {where} failed: is its disk full, or failing?",
        sqlite3.SQLITE_CORRUPT: f"{where} is damaged: start again, and it will be set aside",
        sqlite3.SQLITE_NOTADB: f"{where} is damaged: start again, and it will be set aside",
        sqlite3.SQLITE_TOOBIG: "the text is too long to be kept (1 GB at most)",
    }.get(code)


def _prepare(path: Path) -> None:
    with suppress(FileExistsError):
        # Made here, not by SQLite, which would let others read it; its log files take over these rights. EXCL: opening
        # and closing a file that is there would drop the locks that another store of this process holds on it.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    if not os.access(path, os.R_OK | os.W_OK):
        raise HistoryError(f"cannot write to {_name(path)}: the file or its disk is read-only, or not yours")


def _inspect(path: Path) -> None:
    """Look without touching: read-only, or closing a damaged file would write its log into it."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            db.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT * 1000:.0f}")
            _refuse_strangers(db, path)
            # Reads the whole file, about a megabyte a millisecond.
            verdict = str(db.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _DAMAGE:
            raise
        raise _DamageError(str(error)) from error
    if verdict != "ok":
        raise _DamageError(verdict.splitlines()[-1])


def _refuse_strangers(db: sqlite3.Connection, path: Path) -> None:
    if db.execute("PRAGMA application_id").fetchone()[0] != schema.APPLICATION_ID:
        if db.execute("SELECT 1 FROM sqlite_schema").fetchone():
            raise HistoryError(f"{_name(path)} is another program's database: move it, or choose another place")
    elif schema.unknown_steps(db):
        raise HistoryError(f"{_name(path)} was written by a newer specchat: update this one to use it")


def _connect(path: Path | None) -> sqlite3.Connection:
    db = sqlite3.connect(path or ":memory:", timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False)
    try:
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA foreign_keys = ON")
        schema.migrate(db)
    except BaseException:
        db.close()
        raise
    return db


def _rename(path: Path) -> Path:
    """Move the database out of the way under a new name, the log under the name SQLite will look for."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    endings = (f"-{number}" if number else "" for number in itertools.count())
    targets = (path.with_name(f"{path.stem}.damaged-{stamp}{ending}{path.suffix}") for ending in endings)
    target = next(target for target in targets if not target.exists())
    # The log first: one left behind would be replayed into the new file.
    for ending in ("-wal", "-shm", ""):
        part = path.with_name(path.name + ending)
        if part.exists():
            part.rename(target.with_name(target.name + ending))
    return target
