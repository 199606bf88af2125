"""What the store stands on: one connection, its lock and transactions, and the replies that lost their writer."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from specchat.history import database, owner, schema
from specchat.history.values import HistoryError, SetAside

_IMPATIENT: Final = 0.05  # seconds for a lock that was waited for in vain before


class Base:
    """An open database. `set_aside` is not None if a damaged one had to make room for it."""

    file: Path | None
    set_aside: SetAside | None

    def __init__(self, file: Path | None, *, clock: Callable[[], float] = time.time) -> None:
        """Open `file`, made where it does not exist; None keeps everything in memory. Raises HistoryError."""
        self.file = file
        self._clock = clock
        self._lock = threading.Lock()
        self._owner = owner.new_owner()
        self._db, self.set_aside = database.open_database(file)
        self._identity = database.identity(file)
        self._patience = database.BUSY_TIMEOUT

    def close(self) -> None:
        """Replies this store was still writing are left as stopped. Twice does no harm."""
        # What cannot be written now will be put right by the next store: see `_stop_orphans`.
        with self._lock, suppress(HistoryError, sqlite3.ProgrammingError):
            try:
                with database.explained(self.file):
                    self._db.execute(
                        """UPDATE messages SET state = 'stopped', owner = NULL
                        WHERE state = 'streaming' AND owner = ?""",
                        (self._owner,),
                    )
            finally:
                owner.release(self._owner)
                self._db.close()

    def version(self) -> int:
        """A number that changes when another window has written something; asking is cheap."""
        with self._lock, self._explained():
            return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def _now(self) -> int:
        return int(self._clock() * 1000)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._explained():
            try:
                self._stop_orphans()
            except sqlite3.OperationalError:  # nothing can be written now; reading still works
                self._wait_at_most(_IMPATIENT)
            yield self._db

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all of it is on disk afterwards, or none."""
        with self._lock, self._explained():
            with schema.transaction(self._db):
                self._stop_orphans()
                yield self._db
            self._wait_at_most(database.BUSY_TIMEOUT)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        with database.explained(self.file):
            database.must_be(self.file, self._identity)
            try:
                yield
            except sqlite3.DatabaseError as error:
                code = getattr(error, "sqlite_errorcode", 0)
                if code & 0xFF == sqlite3.SQLITE_BUSY:
                    self._wait_at_most(_IMPATIENT)
                if code != sqlite3.SQLITE_CORRUPT_VTAB:
                    raise
                schema.renew_index(self._db)
                raise HistoryError("the search index was damaged and has been rebuilt: try again") from error

    def _wait_at_most(self, seconds: float) -> None:
        """Have what is locked waited for so long. Whoever waited in vain once is not kept waiting at every call."""
        if seconds != self._patience:
            self._patience = seconds
            self._db.execute(f"PRAGMA busy_timeout = {seconds * 1000:.0f}")

    def _stop_orphans(self) -> None:
        """Replies in the making whose process is gone are stopped replies.

        They keep their owner: should it have been alive after all, it writes on, and they are streaming again.
        """
        rows = self._db.execute(
            "SELECT id, owner, updated FROM messages WHERE state = 'streaming' AND owner IS NOT ?", (self._owner,)
        ).fetchall()
        for row in rows:
            if not owner.is_alive(row["owner"], silent_for=(self._now() - row["updated"]) / 1000):
                self._db.execute(
                    "UPDATE messages SET state = 'stopped' WHERE id = ? AND state = 'streaming' AND owner = ?",
                    (row["id"], row["owner"]),
                )
