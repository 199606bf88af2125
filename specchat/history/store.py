"""Conversations in SQLite.

Contract: every method is one transaction, on disk when it returns (see `database` for what that survives), or a
HistoryError and nothing changed. Most take under a millisecond, a whole branch or a search more; now and then one waits
for the disk. A store may be used from any thread of its process: a lock lets one call in at a time. Each window has
a store of its own, and several processes may use one file.

A conversation is a tree of messages. Nothing is ever overwritten: an edited question and a regenerated reply are new
messages beside the old ones. `leaf` of the conversation is the end of the branch shown last.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from specchat.history import rows
from specchat.history.conversations import Conversations, keep_unsent, load
from specchat.history.search import search
from specchat.history.titles import title_of
from specchat.history.values import Conversation, End, GoneError, HistoryError, Hit, Message, Turn


class Store(Conversations):
    """The conversations of one file and their turns. Use as a context manager, or `close` it."""

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, conversation_id: str, text: str, *, after: int | None, unsent: str = "", typed: str = "") -> Turn:
        """Add a question after the message this window shows last (None: none yet), and show that branch.

        If others follow that message already, or another window is writing it, the question forks off: see `Turn`;
        `message.parent` then says where. `unsent` is what stays in the prompt box. A first question gives its
        conversation the title, made from what was `typed` of it where files stand before that.
        """
        with self._writing() as db:
            load(db, conversation_id)
            parent = self._ground(db, after)
            forked = parent != after or _has_replies(db, conversation_id, parent)
            question = self._question(db, conversation_id, parent, text, unsent, typed or text)
            return Turn(question, forked)

    def edit(self, message_id: int, text: str, *, unsent: str = "", typed: str = "") -> Message:
        """A new version of a question, beside the old one.

        A title that was made from what was `typed` of it stays while the file before that does.
        """
        with self._writing() as db:
            old = _message(db, message_id, role="user")
            named = typed or ("" if _keeps_title(db, old, text) else text)
            return self._question(db, old.conversation, old.parent, text, unsent, named)

    def begin_reply(self, question_id: int, *, pair: str = "", settings: Mapping[str, object] | None = None) -> Message:
        """A new, empty reply that this store will write; one more where the question has a reply already."""
        with self._writing() as db:
            question = _message(db, question_id, role="user")
            reply = self._insert(db, question.conversation, question_id, "assistant", owner=self._owner)
            db.execute(
                "UPDATE messages SET pair = ?, settings = ? WHERE id = ?",
                (rows.storable(pair), rows.as_json(settings or {}), reply),
            )
            return _message(db, reply)

    def continue_reply(self, reply_id: int) -> Turn:
        """Make a reply that has ended one that this store writes on.

        If turns follow it already, a copy beside it is continued (`forked`), so that they stay true.
        """
        with self._writing() as db:
            reply = _message(db, reply_id, role="assistant")
            if reply.state == "streaming":
                raise HistoryError("this reply is still being written")
            forked = _has_replies(db, reply.conversation, reply_id)
            if forked:
                reply_id = self._insert(db, reply.conversation, reply.parent, "assistant", owner=self._owner)
                db.execute(
                    """UPDATE messages SET (content, reasoning, pair, settings, figures) =
                        (SELECT content, reasoning, pair, settings, figures FROM messages WHERE id = ?)
                    WHERE id = ?""",
                    (reply.id, reply_id),
                )
            else:
                db.execute(
                    "UPDATE messages SET state = 'streaming', owner = ?, updated = ? WHERE id = ?",
                    (self._owner, self._now(), reply_id),
                )
                self._touch(db, reply.conversation)
                _show(db, reply.conversation, reply_id)
            return Turn(_message(db, reply_id), forked)

    def append_to(self, reply_id: int, content: str = "", reasoning: str = "") -> None:
        """More of a reply that this store is writing. Meant to be called a few times a second, not for each token."""
        with self._writing() as db:
            written = db.execute(
                """UPDATE messages SET state = 'streaming', updated = ?,
                    content = content || ?, reasoning = reasoning || ? WHERE id = ? AND owner = ?""",
                (self._now(), rows.storable(content), rows.storable(reasoning), reply_id, self._owner),
            )
            _must_own(written)

    def finish(
        self,
        reply_id: int,
        state: End = "complete",
        *,
        figures: Mapping[str, object] | None = None,
        content: str | None = None,
        reasoning: str | None = None,
    ) -> Message:
        """End a reply that this store is writing; `content` and `reasoning`, if given, replace what was appended."""
        with self._writing() as db:
            written = db.execute(
                """UPDATE messages SET state = ?, owner = NULL, updated = ?, figures = coalesce(?, figures),
                    content = coalesce(?, content), reasoning = coalesce(?, reasoning)
                WHERE id = ? AND owner = ?""",
                (
                    state,
                    self._now(),
                    None if figures is None else rows.as_json(figures),
                    None if content is None else rows.storable(content),
                    None if reasoning is None else rows.storable(reasoning),
                    reply_id,
                    self._owner,
                ),
            )
            _must_own(written)
            reply = _message(db, reply_id)
            db.execute("UPDATE conversations SET updated = ? WHERE id = ?", (self._now(), reply.conversation))
            return reply

    # Branches

    def message(self, message_id: int) -> Message:
        with self._reading() as db:
            return _message(db, message_id)

    def path(self, leaf: int | None, limit: int | None = None) -> tuple[Message, ...]:
        """The last `limit` messages of the branch that ends with `leaf`, oldest first; no other row is read.

        Older ones: `path(messages[0].parent, limit)`.
        """
        with self._reading() as db:
            found = db.execute(
                f"""WITH RECURSIVE up(id, parent) AS (
                    SELECT id, parent FROM messages WHERE id = :leaf
                    UNION ALL
                    SELECT m.id, m.parent FROM up JOIN messages AS m ON m.id = up.parent
                    LIMIT :limit)
                {rows.MESSAGES} JOIN up ON m.id = up.id ORDER BY m.depth""",
                {"leaf": leaf, "limit": -1 if limit is None else limit},
            )
            return tuple(rows.message(row) for row in found)

    def branches(self, message_id: int) -> tuple[Message, ...]:
        """The message and those beside it, oldest first: `branch` 1 to `branches`."""
        with self._reading() as db:
            here = _message(db, message_id)
            found = db.execute(
                f"{rows.MESSAGES} WHERE m.conversation = ? AND m.parent IS ? ORDER BY m.id",
                (here.conversation, here.parent),
            )
            return tuple(rows.message(row) for row in found)

    def message_ids(self, conversation_id: str, after: int = 0) -> tuple[int, ...]:
        """The messages of all branches written after the one called `after`, the oldest first."""
        with self._reading() as db:
            found = db.execute(
                "SELECT id FROM messages WHERE conversation = ? AND id > ? ORDER BY id", (conversation_id, after)
            )
            return tuple(row["id"] for row in found)

    def switch(self, message_id: int) -> Conversation:
        """Show the branch through this message, down to the turn it was left at."""
        with self._writing() as db:
            here = _message(db, message_id)
            leaf = db.execute(
                """WITH RECURSIVE down(id, next) AS (
                    SELECT id, next FROM messages WHERE id = ?
                    UNION ALL
                    SELECT m.id, m.next FROM down JOIN messages AS m ON m.id = down.next)
                SELECT id FROM down WHERE next IS NULL""",
                (message_id,),
            ).fetchone()["id"]
            _show(db, here.conversation, leaf)
            return load(db, here.conversation)

    def tree(self, conversation_id: str) -> tuple[Message, ...]:
        """Every message of every branch, oldest first (for an export)."""
        with self._reading() as db:
            load(db, conversation_id)
            found = db.execute(f"{rows.MESSAGES} WHERE m.conversation = ? ORDER BY m.id", (conversation_id,))
            return tuple(rows.message(row) for row in found)

    # Search

    def search(
        self, query: str, *, reasoning: bool = False, conversation: str | None = None, limit: int = 50
    ) -> tuple[Hit, ...]:
        """Where the query's words occur (see `search` for how they are read): titles given by hand, questions,
        answers, and reasoning if asked for; within one conversation if given. A reply still growing is not found."""
        with self._reading() as db:
            return search(db, query, reasoning=reasoning, conversation=conversation, limit=limit)

    # Within a transaction

    def _ground(self, db: sqlite3.Connection, after: int | None) -> int | None:
        """What a question can stand on: not a reply that another window is writing, but the turn before it."""
        if after is None:
            return None
        row = db.execute("SELECT state, owner, parent FROM messages WHERE id = ?", (after,)).fetchone()
        if row is None:
            raise GoneError("the message before this one no longer exists")
        if row["state"] != "streaming":
            return after
        if row["owner"] == self._owner:
            raise HistoryError("the reply before this question is still being written: stop it first")
        return _message(db, row["parent"]).parent

    def _question(
        self, db: sqlite3.Connection, conversation_id: str, parent: int | None, text: str, unsent: str, named: str
    ) -> Message:
        question = self._insert(db, conversation_id, parent, "user", content=rows.storable(text))
        keep_unsent(db, conversation_id, unsent)
        if parent is None and named:
            db.execute(
                "UPDATE conversations SET title = ? WHERE id = ? AND title_origin = 'auto'",
                (title_of(named), conversation_id),
            )
        return _message(db, question)

    def _insert(
        self,
        db: sqlite3.Connection,
        conversation_id: str,
        parent: int | None,
        role: str,
        content: str = "",
        owner: str | None = None,
    ) -> int:
        new = db.execute(
            """INSERT INTO messages(conversation, parent, depth, role, state, owner, created, updated, content)
            VALUES (:conversation, :parent, coalesce((SELECT depth + 1 FROM messages WHERE id = :parent), 0),
                :role, :state, :owner, :now, :now, :content)
            RETURNING id""",
            {
                "conversation": conversation_id,
                "parent": parent,
                "role": role,
                "state": "streaming" if owner else "complete",
                "owner": owner,
                "now": self._now(),
                "content": content,
            },
        ).fetchone()["id"]
        self._touch(db, conversation_id)
        _show(db, conversation_id, new)
        return int(new)

    def _touch(self, db: sqlite3.Connection, conversation_id: str) -> None:
        """It is in use now, whatever another window may have done with it."""
        db.execute("UPDATE conversations SET updated = ?, deleted = NULL WHERE id = ?", (self._now(), conversation_id))


def _show(db: sqlite3.Connection, conversation_id: str, leaf: int) -> None:
    """Make `leaf` the end of the branch shown, and let every message above it lead there again."""
    db.execute(
        """WITH RECURSIVE up(id, parent) AS (
            SELECT id, parent FROM messages WHERE id = ?
            UNION ALL
            SELECT m.id, m.parent FROM up JOIN messages AS m ON m.id = up.parent)
        UPDATE messages SET next = up.id FROM up WHERE messages.id = up.parent AND messages.next IS NOT up.id""",
        (leaf,),
    )
    db.execute("UPDATE conversations SET leaf = ? WHERE id = ?", (leaf, conversation_id))


def _message(db: sqlite3.Connection, message_id: int, role: str | None = None) -> Message:
    row = db.execute(f"{rows.MESSAGES} WHERE m.id = ?", (message_id,)).fetchone()
    if row is None:
        raise GoneError("this message no longer exists")
    if role and row["role"] != role:
        raise HistoryError("only a question can be edited or answered" if role == "user" else "this is no reply")
    return rows.message(row)


def _has_replies(db: sqlite3.Connection, conversation_id: str, message_id: int | None) -> bool:
    found = db.execute(
        "SELECT 1 FROM messages WHERE conversation = ? AND parent IS ? LIMIT 1", (conversation_id, message_id)
    )
    return found.fetchone() is not None


def _keeps_title(db: sqlite3.Connection, old: Message, text: str) -> bool:
    """Whether a new version begins with the file that the title, made from what was typed after it, left out."""
    if old.parent is not None or title_of(text) != title_of(old.content):
        return False
    first = db.execute("SELECT content FROM messages WHERE conversation = ? AND parent IS NULL", (old.conversation,))
    return load(db, old.conversation).title not in {title_of(row["content"]) for row in first}


def _must_own(written: sqlite3.Cursor) -> None:
    if not written.rowcount:
        raise GoneError("this reply has ended, or another window writes it now")
