"""Rows of the tables as values, and values as what SQLite can hold."""

from __future__ import annotations

import json
import math
import re
import sqlite3
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from specchat.history.values import UNTITLED, Conversation, Message

CONVERSATIONS: Final = """SELECT c.*,
    (SELECT count(*) FROM messages AS m WHERE m.conversation = c.id) AS messages
    FROM conversations AS c"""
# Place among the messages with the same parent (`IS`: the first turns have none); both counts come from an index.
MESSAGES: Final = """SELECT m.*,
    (SELECT count(*) FROM messages AS s
     WHERE s.conversation = m.conversation AND s.parent IS m.parent AND s.id <= m.id) AS branch,
    (SELECT count(*) FROM messages AS s
     WHERE s.conversation = m.conversation AND s.parent IS m.parent) AS branches
    FROM messages AS m"""
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")


def moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def conversation(row: sqlite3.Row) -> Conversation:
    return Conversation(
        id=row["id"],
        title=row["title"] or UNTITLED,
        title_origin=row["title_origin"],
        created=moment(row["created"]),
        updated=moment(row["updated"]),
        pair=row["pair"],
        system_prompt=row["system_prompt"],
        settings=_object(row["settings"]),
        unsent=row["unsent"],
        leaf=row["leaf"],
        messages=row["messages"],
        deleted=None if row["deleted"] is None else moment(row["deleted"]),
    )


def message(row: sqlite3.Row) -> Message:
    return Message(
        id=row["id"],
        conversation=row["conversation"],
        parent=row["parent"],
        depth=row["depth"],
        role=row["role"],
        state=row["state"],
        content=row["content"],
        reasoning=row["reasoning"],
        pair=row["pair"],
        settings=_object(row["settings"]),
        figures=_object(row["figures"]),
        created=moment(row["created"]),
        updated=moment(row["updated"]),
        branch=row["branch"],
        branches=row["branches"],
    )


def _object(text: str) -> dict[str, object]:
    return dict(json.loads(text)) if text != "{}" else {}


def storable(text: str) -> str:
    """`text` with U+FFFD for what SQLite cannot hold (lone surrogates) or compares wrongly (NUL)."""
    return _UNSTORABLE.sub("\ufffd", text)


def as_json(value: Mapping[str, object]) -> str:
    """JSON that any program reads."""
    return storable(json.dumps(finite(value), ensure_ascii=False))


def finite(value: object) -> object:
    """`value` as JSON can hold it: numbers that are not finite become null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
