"""The values the history hands out, and the sentences it fails with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, Literal, TypeAlias

from specchat import locations
from specchat.errors import SpecchatError

Role: TypeAlias = Literal["user", "assistant"]
# streaming: being written now; stopped: cut short by the user or by the end of the process that wrote it.
State: TypeAlias = Literal["streaming", "complete", "stopped", "failed"]
End: TypeAlias = Literal["complete", "stopped", "failed"]
TitleOrigin: TypeAlias = Literal["auto", "edited"]
Json: TypeAlias = Mapping[str, object]

UNTITLED: Final = "Untitled"


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation without its messages.

    `leaf` is the message its active branch ends with, None before the first turn. `updated` moves with each turn
    and each end of a reply, not with a new title or settings. `unsent` is the text left in the prompt box.
    """

    id: str
    title: str
    title_origin: TitleOrigin
    created: datetime
    updated: datetime
    pair: str
    system_prompt: str
    settings: Json
    unsent: str
    leaf: int | None
    messages: int  # on all branches
    deleted: datetime | None


@dataclass(frozen=True, slots=True)
class Message:
    """One turn: a node of its conversation's tree.

    `depth` counts the turns above it. It is number `branch` (from 1, oldest first) of the `branches` messages that
    share its parent. `pair`, `settings` and `figures` describe how a reply was made; they are empty for a question.
    """

    id: int
    conversation: str
    parent: int | None
    depth: int
    role: Role
    state: State
    content: str
    reasoning: str
    pair: str
    settings: Json
    figures: Json
    created: datetime
    updated: datetime
    branch: int
    branches: int


@dataclass(frozen=True, slots=True)
class Turn:
    """What became of a turn. `forked`: other turns already followed the one it was written after (another window
    went on there), so it began a branch of its own, and the person should be told."""

    message: Message
    forked: bool


@dataclass(frozen=True, slots=True)
class Hit:
    """A place the search found. `spans` are (start, end) offsets of the matches in `excerpt`, in order.

    `excerpt` is one line without control characters. `message` and `role` are None for a hit in an edited title.
    """

    conversation: str
    title: str
    message: int | None
    role: Role | None
    where: Literal["content", "reasoning", "title"]
    excerpt: str
    spans: tuple[tuple[int, int], ...]
    updated: datetime


@dataclass(frozen=True, slots=True)
class Counts:
    """How much there is; `deleted` conversations are those an undo can still bring back."""

    conversations: int
    messages: int
    deleted: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SetAside:
    """A damaged database that was renamed to `path`; nothing in it was changed."""

    path: Path
    reason: str

    @property
    def sentence(self) -> str:
        return (
            f"the saved conversations were damaged ({self.reason}); "
            f"they were set aside as {locations.tilde(self.path)} and a new file was begun"
        )


class HistoryError(SpecchatError):
    """The history could not do it; nothing that was saved before is lost."""


class GoneError(HistoryError):
    """What was to be written to is not there any more, or not this store's: it is no use to try again."""


class UnknownConversationError(GoneError):
    """No conversation answers to that id."""


class AmbiguousConversationError(HistoryError):
    """Several do: `matches`, the most recent first."""

    def __init__(self, sentence: str, matches: tuple[Conversation, ...]) -> None:
        super().__init__(sentence)
        self.matches = matches
