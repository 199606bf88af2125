"""The tables, as a list of small named steps from an empty file to today's.

Contract: `migrate` brings a database of any earlier version up to date in one transaction, or leaves it as it was.
A step that has been released is never changed; a change of the tables is a new step at the end.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

APPLICATION_ID: Final = 0x73706563  # "spec": tells our files from other programs' databases


@dataclass(frozen=True, slots=True)
class Step:
    """One change of the tables. Steps are told apart by name, and applied in order."""

    name: str
    statements: tuple[str, ...]


_RECORD: Final = "CREATE TABLE IF NOT EXISTS migrations(name TEXT PRIMARY KEY, applied INTEGER NOT NULL)"

_FILL_INDEX: Final = "INSERT INTO message_index(message_index) VALUES ('rebuild')"

# Times are milliseconds since the epoch. Small columns stand first: SQLite then walks a branch without touching
# the overflow pages of long texts.
STEPS: Final = (
    Step(
        "conversations",
        (
            f"PRAGMA application_id = {APPLICATION_ID}",
            # `leaf` has no foreign key: with one, deleting a message would look for it in every conversation.
            """CREATE TABLE conversations(
                id TEXT PRIMARY KEY,
                created INTEGER NOT NULL,
                updated INTEGER NOT NULL,
                deleted INTEGER,
                leaf INTEGER,
                title TEXT NOT NULL DEFAULT '',
                title_origin TEXT NOT NULL DEFAULT 'auto' CHECK (title_origin IN ('auto', 'edited')),
                pair TEXT NOT NULL DEFAULT '',
                settings TEXT NOT NULL DEFAULT '{}',
                system_prompt TEXT NOT NULL DEFAULT '')""",
            "CREATE INDEX conversations_by_time ON conversations(updated DESC, id DESC) WHERE deleted IS NULL",
        ),
    ),
    Step(
        "messages as trees",
        (
            # AUTOINCREMENT: the id of a removed message must never come to mean another one in an open window.
            # The composite keys keep a message and its parent in one conversation. No cascade along `parent`:
            # it would nest once a turn, and SQLite's triggers nest 1,000 deep at most.
            """CREATE TABLE messages(
                id INTEGER PRIMARY KEY AUTOINCREMENT,
                conversation TEXT NOT NULL REFERENCES conversations(id) ON DELETE CASCADE,
                parent INTEGER,
                depth INTEGER NOT NULL,
                role TEXT NOT NULL CHECK (role IN ('user', 'assistant')),
                state TEXT NOT NULL CHECK (state IN ('streaming', 'complete', 'stopped', 'failed')),
                owner TEXT,
                created INTEGER NOT NULL,
                updated INTEGER NOT NULL,
                pair TEXT NOT NULL DEFAULT '',
                settings TEXT NOT NULL DEFAULT '{}',
                figures TEXT NOT NULL DEFAULT '{}',
                content TEXT NOT NULL DEFAULT '',
                reasoning TEXT NOT NULL DEFAULT '',
                UNIQUE (conversation, id),
                FOREIGN KEY (conversation, parent) REFERENCES messages(conversation, id))""",
            "CREATE INDEX messages_by_parent ON messages(conversation, parent)",
            "CREATE INDEX messages_streaming ON messages(id) WHERE state = 'streaming'",
        ),
    ),
    Step(
        "full-text search",
        (
            # The index refers to the messages instead of copying them. A reply enters it when it has ended:
            # indexing a growing text again at every append would cost more than writing it.
            "CREATE VIEW searchable AS SELECT id, content, reasoning FROM messages WHERE state <> 'streaming'",
            """CREATE VIRTUAL TABLE message_index USING fts5(content, reasoning,
                content='searchable', content_rowid='id', tokenize='unicode61 remove_diacritics 2')""",
            """CREATE TRIGGER index_inserted AFTER INSERT ON messages WHEN new.state <> 'streaming' BEGIN
                INSERT INTO message_index(rowid, content, reasoning)
                VALUES (new.id, new.content, new.reasoning); END""",
            """CREATE TRIGGER index_deleted AFTER DELETE ON messages WHEN old.state <> 'streaming' BEGIN
                INSERT INTO message_index(message_index, rowid, content, reasoning)
                VALUES ('delete', old.id, old.content, old.reasoning); END""",
            # BEFORE: among triggers of one moment the order is not defined, and old text must leave first.
            """CREATE TRIGGER index_changing BEFORE UPDATE OF state, content, reasoning ON messages
                WHEN old.state <> 'streaming' BEGIN
                INSERT INTO message_index(message_index, rowid, content, reasoning)
                VALUES ('delete', old.id, old.content, old.reasoning); END""",
            """CREATE TRIGGER index_changed AFTER UPDATE OF state, content, reasoning ON messages
                WHEN new.state <> 'streaming' BEGIN
                INSERT INTO message_index(rowid, content, reasoning)
                VALUES (new.id, new.content, new.reasoning); END""",
            _FILL_INDEX,
        ),
    ),
    Step(
        "unsent text of the prompt box",
        ("ALTER TABLE conversations ADD COLUMN unsent TEXT NOT NULL DEFAULT ''",),
    ),
    Step(
        "branch last shown below each message",
        (
            "ALTER TABLE messages ADD COLUMN next INTEGER",
            """UPDATE messages SET next =
                (SELECT max(c.id) FROM messages AS c
                 WHERE c.conversation = messages.conversation AND c.parent = messages.id)""",
        ),
    ),
)


def applied(db: sqlite3.Connection) -> set[str]:
    """Names of the steps this database has been through; empty for an empty file."""
    if not db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'migrations'").fetchone():
        return set()
    return {name for (name,) in db.execute("SELECT name FROM migrations")}


def unknown_steps(db: sqlite3.Connection) -> tuple[str, ...]:
    """Steps that a newer version of the program took; non-empty means this version must not touch the file."""
    return tuple(sorted(applied(db) - {step.name for step in STEPS}))


def migrate(db: sqlite3.Connection) -> None:
    """Take the steps that are missing."""
    # Looked at first without the write lock: opening must not wait for another window's writing.
    if applied(db) == {step.name for step in STEPS}:
        return
    with transaction(db):
        db.execute(_RECORD)
        done = applied(db)
        for step in STEPS:
            if step.name not in done:
                for statement in step.statements:
                    db.execute(statement)
                db.execute("INSERT INTO migrations VALUES (?, ?)", (step.name, int(time.time() * 1000)))


def renew_index(db: sqlite3.Connection) -> None:
    """Make the search index again from the messages, whatever state it is in."""
    with transaction(db):
        # FTS5 can neither empty nor drop an index whose root it cannot read: that of a blank one takes its place.
        db.execute("CREATE VIRTUAL TABLE temp.blank USING fts5(content, reasoning)")
        for part in ("data", "idx", "docsize"):
            db.execute(f"DELETE FROM message_index_{part}")
            db.execute(f"INSERT INTO message_index_{part} SELECT * FROM temp.blank_{part}")
        db.execute("DROP TABLE temp.blank")
        db.execute(_FILL_INDEX)


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All of what is done in it, or none. `db` must be in autocommit mode."""
    try:
        # IMMEDIATE: a transaction that turns from reading to writing fails at once, not waiting its turn.
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
