"""The list of conversations: begun, found, named, deleted and brought back."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from specchat.history import ids, rows
from specchat.history.base import Base
from specchat.history.titles import clean_title, title_of
from specchat.history.values import (
    AmbiguousConversationError,
    Conversation,
    Counts,
    UnknownConversationError,
)

KEEP_DELETED: Final = timedelta(days=30)
KEEP_UNUSED: Final = timedelta(days=1)


class Conversations(Base):
    """The conversations of one file, without their turns (`Store` adds those)."""

    def create(
        self, *, pair: str = "", system_prompt: str = "", settings: Mapping[str, object] | None = None
    ) -> Conversation:
        """A new, empty conversation. `conversations` shows it once it holds a turn or unsent text."""
        with self._writing() as db:
            now = self._now()
            second = now // 1000
            while db.execute("SELECT 1 FROM conversations WHERE id = ?", (ids.encode(second),)).fetchone():
                second = max(second, ids.EPOCH) + 1
            db.execute(
                """INSERT INTO conversations(id, created, updated, pair, system_prompt, settings)
                VALUES (?, ?, ?, ?, ?, ?)""",
                (
                    ids.encode(second),
                    now,
                    now,
                    rows.storable(pair),
                    rows.storable(system_prompt),
                    rows.as_json(settings or {}),
                ),
            )
            return load(db, ids.encode(second))

    def conversation(self, conversation_id: str) -> Conversation:
        """By its whole id, deleted ones too. Raises UnknownConversationError."""
        with self._reading() as db:
            return load(db, conversation_id)

    def conversations(self, limit: int = 50, after: Conversation | None = None) -> tuple[Conversation, ...]:
        """The latest first; `after` the last of a page comes the next page."""
        with self._reading() as db:
            found = db.execute(
                f"""{rows.CONVERSATIONS}
                WHERE c.deleted IS NULL AND (c.leaf IS NOT NULL OR c.unsent <> '')
                    AND (:id IS NULL OR (c.updated, c.id) < (:updated, :id))
                ORDER BY c.updated DESC, c.id DESC LIMIT :limit""",
                {
                    "id": after and after.id,
                    "updated": after and round(after.updated.timestamp() * 1000),
                    "limit": limit,
                },
            )
            return tuple(rows.conversation(row) for row in found)

    def last(self) -> Conversation | None:
        """The one used last."""
        return next(iter(self.conversations(limit=1)), None)

    def find(self, prefix: str) -> Conversation:
        """The one whose id begins so, as people type ids (any case, o for 0, i and l for 1).

        Raises UnknownConversationError or AmbiguousConversationError.
        """
        wanted = ids.normalised(prefix)
        with self._reading() as db:
            found = db.execute(
                f"""{rows.CONVERSATIONS} WHERE substr(c.id, 1, ?) = ? AND c.deleted IS NULL
                ORDER BY c.updated DESC, c.id DESC LIMIT 10""",
                (len(wanted), rows.storable(wanted)),
            )
            matches = tuple(rows.conversation(row) for row in found)
        if not matches or not wanted:
            raise UnknownConversationError(f"no conversation has an id that begins with {prefix!r}")
        if len(matches) > 1:
            some = ", ".join(f"{match.id} ({match.title})" for match in matches[:3])
            more = ", ..." if len(matches) > 3 else ""
            raise AmbiguousConversationError(
                f"more than one conversation has an id that begins with {wanted!r}: {some}{more}", matches
            )
        return matches[0]

    def rename(self, conversation_id: str, title: str) -> Conversation:
        """Set the title by hand; an empty one brings back the one made from the first question."""
        with self._writing() as db:
            edited = clean_title(title)
            db.execute(
                "UPDATE conversations SET title = ?, title_origin = ? WHERE id = ?",
                (edited or _first_title(db, conversation_id), "edited" if edited else "auto", conversation_id),
            )
            return load(db, conversation_id)

    def configure(
        self,
        conversation_id: str,
        *,
        pair: str | None = None,
        system_prompt: str | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> Conversation:
        """What holds from the next reply on; None leaves it as it is."""
        with self._writing() as db:
            db.execute(
                """UPDATE conversations SET pair = coalesce(?, pair),
                    system_prompt = coalesce(?, system_prompt), settings = coalesce(?, settings) WHERE id = ?""",
                (
                    None if pair is None else rows.storable(pair),
                    None if system_prompt is None else rows.storable(system_prompt),
                    None if settings is None else rows.as_json(settings),
                    conversation_id,
                ),
            )
            return load(db, conversation_id)

    def keep_unsent(self, conversation_id: str, text: str) -> None:
        """The text now in the prompt box."""
        with self._writing() as db:
            keep_unsent(db, conversation_id, text)

    def delete(self, conversation_id: str) -> None:
        """Out of lists, search and `find`, until `restore` or a turn sent to it brings it back."""
        self._set_deleted(conversation_id, self._now())

    def restore(self, conversation_id: str) -> None:
        """Undo `delete`."""
        self._set_deleted(conversation_id, None)

    def last_deleted(self) -> Conversation | None:
        """The one deleted last, of those not purged yet."""
        with self._reading() as db:
            query = f"{rows.CONVERSATIONS} WHERE c.deleted IS NOT NULL ORDER BY c.deleted DESC, c.id DESC LIMIT 1"
            return next((rows.conversation(row) for row in db.execute(query)), None)

    def _set_deleted(self, conversation_id: str, when: int | None) -> None:
        with self._writing() as db:
            db.execute("UPDATE conversations SET deleted = ? WHERE id = ?", (when, conversation_id))
            load(db, conversation_id)

    def purge(self, keep_deleted: timedelta = KEEP_DELETED, keep_unused: timedelta = KEEP_UNUSED) -> int:
        """Remove for good what was deleted, or begun and never used, that long ago; how many went."""
        with self._writing() as db:
            now = self._now()
            gone = [
                row["id"]
                for row in db.execute(
                    """SELECT id FROM conversations
                    WHERE deleted <= ? OR (leaf IS NULL AND unsent = '' AND updated <= ?)""",
                    (now - _milliseconds(keep_deleted), now - _milliseconds(keep_unused)),
                )
            ]
            for conversation_id in gone:
                db.execute("DELETE FROM messages WHERE conversation = ?", (conversation_id,))
                db.execute("DELETE FROM conversations WHERE id = ?", (conversation_id,))
            return len(gone)

    def counts(self) -> Counts:
        with self._reading() as db:
            row = db.execute(
                """SELECT count(*) FILTER (WHERE deleted IS NULL) AS conversations, count(deleted) AS deleted,
                (SELECT count(*) FROM messages) AS messages,
                (SELECT page_count * page_size FROM pragma_page_count, pragma_page_size) AS bytes
                FROM conversations"""
            ).fetchone()
            return Counts(**dict(row))


def load(db: sqlite3.Connection, conversation_id: str) -> Conversation:
    row = db.execute(f"{rows.CONVERSATIONS} WHERE c.id = ?", (rows.storable(conversation_id),)).fetchone()
    if row is None:
        raise UnknownConversationError(f"there is no conversation {conversation_id!r} any more")
    return rows.conversation(row)


def keep_unsent(db: sqlite3.Connection, conversation_id: str, text: str) -> None:
    db.execute("UPDATE conversations SET unsent = ? WHERE id = ?", (rows.storable(text), conversation_id))


def _first_title(db: sqlite3.Connection, conversation_id: str) -> str:
    row = db.execute(
        "SELECT content FROM messages WHERE conversation = ? AND parent IS NULL ORDER BY id DESC LIMIT 1",
        (conversation_id,),
    ).fetchone()
    return title_of(row["content"]) if row else ""


def _milliseconds(span: timedelta) -> int:
    return int(span.total_seconds() * 1000)
