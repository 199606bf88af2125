"""The conversation on the screen, kept on disk while it is spoken.

Contract: the user's turn is on disk before decoding starts, the reply grows there about twice a second, and so does
what is in the box. `shown` is the branch on the screen, and the session's `messages` always say the same. A history
that cannot be written never keeps anyone from chatting: the first failure is handed to `on_trouble` as a sentence, and
what is said until it can is written then, before anything else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final, TypeVar

from specchat.engine.replies import Message as Said
from specchat.engine.stats import Figures
from specchat.history import Conversation, End, GoneError, HistoryError, Message, Store
from specchat.session import Session
from specchat.tui.reply import Reply

T = TypeVar("T")

_INTERVAL: Final = 0.5  # seconds between two writes of a growing reply, or of the box
_ENDS: Final[Mapping[str, End]] = {"cancelled": "stopped", "error": "failed", "": "stopped"}


@dataclass(slots=True)
class _Growing:
    """The reply being written: how much of it is on disk."""

    id: int
    answer: int = 0
    reasoning: int = 0
    written: float = 0.0


class Journal:
    """One window's conversation in the store."""

    def __init__(self, store: Store, session: Session, on_trouble: Callable[[str], None]) -> None:
        self.store: Final = store
        self._session = session
        self._on_trouble = on_trouble
        self._troubled = False
        self.conversation: Conversation | None = None
        self.leaf: int | None = None  # the last message on the screen
        self.said: tuple[Said, ...] = ()  # the branch as it was when it was last read
        self.elsewhere: int | None = None  # the latest message that another window added, until it is shown
        self._version = 0  # of the file, when it was last looked at
        self._newest = 0  # the latest message of any window that is known
        self._own: set[int] = set()  # those of this window since then
        self._growing: _Growing | None = None  # maybe of a conversation that was left meanwhile
        self._retry: int | None = None  # the question that got no answer
        self._unkept: tuple[str, str] | None = None  # the question that could not be written, while it is answered
        self._late: list[Callable[[], Message | None]] = []  # what could not be written, in its order
        self._unsent = ""
        self._unsent_written = 0.0

    # ---- which conversation

    @property
    def shown_id(self) -> str:
        """The conversation on the screen; "" while it is not in the store."""
        return self.conversation.id if self.conversation is not None else ""

    @property
    def growing(self) -> int | None:
        """The message that a running reply is written to, maybe of a conversation that was left."""
        return self._growing.id if self._growing is not None else None

    def is_deleted(self) -> bool:
        """Whether the conversation on the screen has been deleted. Raises HistoryError."""
        return self.store.conversation(self.shown_id).deleted is not None

    def open(self, conversation: Conversation) -> tuple[Message, ...]:
        """Make `conversation` the one on the screen; answers with its shown branch.

        Raises HistoryError, and has changed nothing then.
        """
        conversation = self.store.conversation(conversation.id)  # it may have grown since it was listed
        path, known = self.store.path(conversation.leaf), self.store.message_ids(conversation.id)
        self.settle()
        self._late.clear()
        self.conversation, self._retry = conversation, None
        self._newest, self.elsewhere = max(known, default=0), None
        self._unsent = conversation.unsent
        self._session.system_prompt = conversation.system_prompt
        self._stand_on(path)
        return path

    def show(self, leaf: int | None) -> tuple[Message, ...]:
        """Make the branch that ends with `leaf` the one on the screen; the session goes on from there.

        Raises HistoryError, and has changed nothing then.
        """
        path = self.store.path(leaf)
        self._stand_on(path)
        return path

    def _stand_on(self, path: tuple[Message, ...]) -> None:
        self.leaf = path[-1].id if path else None
        self._session.messages = self.said = spoken(path)

    def before(self, message: int) -> tuple[Said, ...]:
        """What was said before a message. Raises HistoryError."""
        return spoken(self.store.path(self.store.message(message).parent))

    def close_conversation(self) -> None:
        """Leave the conversation; the next turn begins a new one."""
        self.settle()
        self._late.clear()
        self.conversation, self._retry, self._unsent = None, None, ""
        self._newest, self.elsewhere = 0, None
        self._stand_on(())

    # ---- other windows

    def has_changed(self) -> bool:
        """Whether another window has written anything since the last time this was asked. Raises HistoryError."""
        before, self._version = self._version, self.store.version()
        return self._version != before

    def look(self) -> bool:
        """Look for what other windows added to this conversation; whether there is more of it than at the last look.

        `elsewhere` is then the latest of it. Raises HistoryError.
        """
        if self.conversation is None:
            return False
        ids = self.store.message_ids(self.conversation.id, self._newest)
        added = [id for id in ids if id not in self._own]
        self._newest = max(ids, default=self._newest)
        self._own.clear()
        self.elsewhere = added[-1] if added else self.elsewhere
        return bool(added)

    def _ensure(self) -> Conversation:
        if self.conversation is None:
            self.conversation = self.store.create(
                pair=self._session.launch.name, system_prompt=self._session.system_prompt
            )
        return self.conversation

    # ---- turns

    def ask(self, text: str, unsent: str = "", typed: str = "") -> tuple[Message | None, bool]:
        """Put the user's turn on disk, and an empty reply after it. Also whether another window had gone on here.

        `unsent` is what stays in the box, here and in `ask_anew`; `typed` is the text without the files before it.
        """

        def write() -> tuple[Message | None, bool]:
            self._catch_up()
            if self._retry is not None:
                return self._write_anew(self._retry, text, unsent, typed), False
            turn = self.store.send(self._ensure().id, text, after=self.leaf, unsent=unsent, typed=typed)
            self._begin(turn.message.id)
            return turn.message, turn.forked

        self._unsent = unsent
        nothing: tuple[Message | None, bool] = (None, False)
        message, forked = self._carefully(write, nothing)
        self._unkept = (text, typed) if message is None else None
        return message, forked

    def settle(self) -> None:
        """Write what could not be written so far, if that is possible now."""
        if self._late:
            self._carefully(self._catch_up, None)

    def _catch_up(self) -> Message | None:
        written = None
        while self._late:
            with suppress(GoneError):  # it cannot be written later either
                written = self._late[0]()
            del self._late[0]
        return written

    def _write_exchange(self, question: str, typed: str, reply: Reply) -> None:
        self._begin(self.store.send(self._ensure().id, question, after=self.leaf, typed=typed).message.id)
        growing, self._growing = self._growing, None
        assert growing is not None
        self._late.insert(1, partial(self._finish, growing, reply))

    def abandon(self, question: int | None) -> None:
        """The question got no answer at all: what is sent next takes its place, as another version of it."""
        self._retry = question

    def _write_anew(self, question: int, text: str, unsent: str, typed: str = "") -> Message:
        message = self.store.edit(question, text, unsent=unsent, typed=typed)
        self._begin(message.id)
        return message

    def ask_anew(self, question: int, text: str, unsent: str = "") -> Message:
        """Put an edited turn on disk beside the old one, and an empty reply after it. Raises HistoryError."""
        self._catch_up()
        message = self._write_anew(question, text, unsent)
        self._unsent = unsent
        return message

    def answer_anew(self, question: int) -> None:
        """Begin another reply to a question."""

        def write() -> None:
            self._catch_up()
            self._begin(question)

        self._carefully(write, None)

    def go_on(self, reply: int) -> None:
        """Write on a reply that was stopped."""

        def write() -> None:
            self._catch_up()
            message = self.store.continue_reply(reply).message
            self._growing = _Growing(message.id)
            self.leaf = message.id
            self._own.add(message.id)

        self._carefully(write, None)

    def keep_settings(self) -> None:
        """Write down which pair and which system prompt the conversation goes on with."""
        now, launch = self.conversation, self._session.launch
        if now is None or (now.pair, now.system_prompt) == (launch.name, self._session.system_prompt):
            return
        id, prompt = now.id, self._session.system_prompt
        kept = self._carefully(lambda: self.store.configure(id, pair=launch.name, system_prompt=prompt), None)
        self.conversation = kept or now

    def _begin(self, question: int) -> None:
        self.keep_settings()
        options = self._session.options
        speculation = self._session.speculation
        settings = {
            **asdict(options.sampling),
            "speculation": speculation.mode.value,
            "depth": speculation.depth,
            "max_tokens": options.max_tokens,
        }
        reply = self.store.begin_reply(question, pair=self._session.launch.name, settings=settings)
        self._growing = _Growing(reply.id)
        self.leaf, self._retry = reply.id, None
        self._own |= {question, reply.id}

    def grow(self, reply: Reply) -> None:
        """Write what came since the last call, at most about twice a second."""
        growing, now = self._growing, time.monotonic()
        if growing is not None and now - growing.written >= _INTERVAL:
            growing.written = now
            self._carefully(lambda: self._write_rest(growing, reply), None)

    def _write_rest(self, growing: _Growing, reply: Reply) -> None:
        answer, reasoning = reply.answer[growing.answer :], reply.reasoning[growing.reasoning :]
        if answer or reasoning:
            self.store.append_to(growing.id, answer, reasoning)
            growing.answer, growing.reasoning = len(reply.answer), len(reply.reasoning)

    def end(self, reply: Reply) -> Message | None:
        """The reply has ended; answers with it as it is on disk."""
        growing, self._growing = self._growing, None
        unkept, self._unkept = self._unkept, None
        if growing is not None:
            self._late.append(partial(self._finish, growing, reply))
        elif unkept is not None and reply.message is not None:
            self._late.append(partial(self._write_exchange, *unkept, reply))
        else:
            return None
        return self._carefully(self._catch_up, None)

    def _finish(self, growing: _Growing, reply: Reply) -> Message:
        self._write_rest(growing, reply)
        state = _ENDS.get(reply.finish, "complete")
        figures = {**asdict(reply.figures), "drafters": reply.drafters, "finish": reply.finish}
        return self.store.finish(growing.id, state, figures=figures)

    # ---- the box

    def keep_unsent(self, text: str, now: bool = False) -> bool:
        """Write what is not sent yet, at most about twice a second unless `now`; whether it is on disk."""
        moment = time.monotonic()
        if text == self._unsent or (moment - self._unsent_written < _INTERVAL and not now):
            return text == self._unsent
        self._unsent_written = moment

        def write() -> None:
            self._catch_up()
            self.store.keep_unsent(self._ensure().id, text)
            self._unsent = text

        self._carefully(write, None)
        return text == self._unsent

    def _carefully(self, write: Callable[[], T], otherwise: T) -> T:
        try:
            done = write()
        except HistoryError as error:
            if not self._troubled:
                self._on_trouble(str(error))
            self._troubled = True
            return otherwise
        self._troubled = False
        return done


def spoken(path: Sequence[Message]) -> tuple[Said, ...]:
    """A branch as the engine is to read it: a question that got no answer is left out with it."""
    turns: list[Said] = []
    for message in path:
        if turns and turns[-1].role == message.role:
            turns.pop()
        if message.role == "user" or message.content or message.reasoning:
            turns.append(Said(message.role, message.content, message.reasoning))
        elif turns:
            turns.pop()
    if turns and turns[-1].role == "user":
        turns.pop()
    return tuple(turns)


def figures_of(message: Message) -> tuple[Figures, str, tuple[str, ...]]:
    """A stored reply's figures, how it ended and its drafters; the defaults for what is not there."""
    stored = dict(message.figures)
    drafters, finish = stored.pop("drafters", ()), stored.pop("finish", "")
    known = {name: value for name, value in stored.items() if name in Figures.__dataclass_fields__}
    return (
        Figures(**known),  # type: ignore[arg-type]
        str(finish) if message.state != "failed" else "error",
        tuple(map(str, drafters)) if isinstance(drafters, list | tuple) else (),
    )
