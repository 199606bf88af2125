"""Conversations in SQLite: kept as they are spoken, found again, never lost to a crash.

Contract: plain values in, frozen values out; knows neither screens nor engines. `Store(locations.history_file())` is
the whole interface, with `export` for documents. See `store` for what each call promises, `database` for the file.
"""

from __future__ import annotations

from specchat.history.conversations import KEEP_DELETED
from specchat.history.export import to_json, to_markdown
from specchat.history.store import Store
from specchat.history.titles import title_of
from specchat.history.values import (
    AmbiguousConversationError,
    Conversation,
    Counts,
    End,
    GoneError,
    HistoryError,
    Hit,
    Message,
    Role,
    SetAside,
    State,
    Turn,
    UnknownConversationError,
)

__all__ = [
    "KEEP_DELETED",
    "AmbiguousConversationError",
    "Conversation",
    "Counts",
    "End",
    "GoneError",
    "HistoryError",
    "Hit",
    "Message",
    "Role",
    "SetAside",
    "State",
    "Store",
    "Turn",
    "UnknownConversationError",
    "title_of",
    "to_json",
    "to_markdown",
]
