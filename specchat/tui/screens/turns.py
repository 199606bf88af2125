"""What can be done with one turn of the conversation: copy it, edit it, have it written again or written on.

Contract: what must wait for a running reply (it is stopped, and stays on its branch) is kept in `then`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

from textual import on
from textual.screen import Screen

from specchat.engine.stats import Figures
from specchat.errors import SpecchatError
from specchat.history import Message
from specchat.session import Attachment, Session, compose
from specchat.tui.actions import key_name, key_of
from specchat.tui.clipboard import copy
from specchat.tui.journal import Journal
from specchat.tui.playback import Playback, Running
from specchat.tui.screens.question import Question
from specchat.tui.shown import Shown
from specchat.tui.stopping import Stopping
from specchat.tui.stream import Stream
from specchat.tui.text import as_sentence, clean
from specchat.tui.told import Told
from specchat.tui.widgets.dock import Dock
from specchat.tui.widgets.transcript import Transcript, code_blocks
from specchat.tui.widgets.turns import ReplyTurn, Turn, UserTurn

_UNFINISHED: Final = ("cancelled", "length", "error")


class TurnActions(Told, Screen[None]):
    """The part of the chat screen that works on turns."""

    play: Playback
    keymap: Mapping[str, str]

    def __init__(self, session: Session, journal: Journal) -> None:
        super().__init__()
        self.session: Final = session
        self.journal: Final = journal
        self.figures = Figures()  # the latest known
        self.editing: UserTurn | None = None
        self.then: Callable[[], Awaitable[None]] | None = None  # once the stream has ended
        self.turn: Final = asyncio.Lock()  # held while one stream's end leads to the next, or a message to its reply
        self.stopping: Final = Stopping(session, self, self._say_deaf)

    @property
    def transcript(self) -> Transcript:
        """The conversation."""
        return self.query_one(Transcript)

    @property
    def dock(self) -> Dock:
        """The lower edge."""
        return self.query_one(Dock)

    def key(self, action: str) -> str:
        """The key of an action, as people write it."""
        return key_name(key_of(action, self.keymap))

    @property
    def busy(self) -> bool:
        """Whether a reply is being written or a model loaded, or is about to be."""
        return self.play.now is not None or self.turn.locked()

    @property
    def is_elsewhere(self) -> bool:
        """Whether the reply that is being written is one of a conversation that was left, where it goes on."""
        running = self.play.now
        return running is not None and running.turn is not None and not running.turn.is_attached

    def say_busy(self) -> None:
        """A reply stands in the way."""
        where = "in the other conversation " if self.is_elsewhere else ""
        self.note(f"Stop the reply {where}first.", "warning")

    def note(self, sentence: str, severity: str = "information") -> None:
        """Say something in place, above the box."""
        self.dock.note(sentence, severity)

    @contextmanager
    def giving_back(self, text: str) -> Iterator[None]:
        """A message that could not be sent goes back to the box, with the reason."""
        try:
            yield
        except SpecchatError as error:
            self.dock.refuse(text, as_sentence(error))

    def tell(self, error: SpecchatError) -> None:
        self.note(as_sentence(error), "error")

    def show_state(self) -> None:
        """Bring everything that shows figures up to date."""
        raise NotImplementedError

    # ---- playing

    async def play_question(
        self, whole: str, message: Message | None, typed: str, attached: tuple[Attachment, ...] = ()
    ) -> None:
        """Show a question and play the reply to it. `whole` is what the model reads, `typed` what to give back."""
        shown = Shown.of(message) if message is not None else Shown("user", clean(whole))
        asked, turn = UserTurn(shown), ReplyTurn(by_origin=self.transcript.by_origin)
        await self.transcript.add(asked, turn)
        stream = Stream(self.session.send(whole), "reply")
        self._play(Running(stream, turn, asked, typed, attached))

    def _play(self, running: Running) -> None:
        self.figures = Figures(context_used=self.figures.context_used, context_size=self.figures.context_size)
        self.dock.hush("versions")
        self.play.start(running)
        self.show_state()

    def when_idle(self, then: Callable[[], Awaitable[None]], stop: bool = True) -> None:
        """Do it now, or once the reply has ended, which is stopped unless not to `stop` it."""
        self.call_later(self._when_idle, then, stop)

    async def _when_idle(self, then: Callable[[], Awaitable[None]], stop: bool) -> None:
        async with self.turn:
            running = self.play.now
            if running is None:
                await then()
                return
        self.then = then
        if running.is_reply and stop:
            self.stopping.ask()

    def _say_deaf(self) -> None:
        again = f"The engine does not answer: {self.key('escape')} again ends it."
        self.note(f"{again} What came so far stays, and the next message starts another.", "warning")
        self.show_state()

    async def show_branch(self, leaf: int | None) -> None:
        """Show the branch that ends with `leaf`, and go on from there."""
        path = self.journal.show(leaf)
        await self.transcript.show(map(Shown.of, path))
        self._figures_of(path)
        self.show_state()

    def _figures_of(self, path: Sequence[Message]) -> None:
        """Show the figures of a branch's last reply: what it takes of the context above all."""
        replies = (Shown.of(message).figures for message in reversed(path) if message.role == "assistant")
        self.figures = next(replies, replace(self.figures, passes=0, context_used=0))

    # ---- one turn

    @on(Transcript.Asked)
    async def _asked(self, event: Transcript.Asked) -> None:
        match event.what:
            case "copy":
                self.copy(event.turn)
            case "copy_code":
                self.copy_code(event.turn)
            case "edit":
                self.edit(event.turn)
            case "regenerate":
                self.regenerate(event.turn)
            case "go_on":
                self.go_on(event.turn)
            case "older_version":
                await self._show_version(event.turn, -1)
            case "newer_version":
                await self._show_version(event.turn, 1)

    def copy(self, turn: Turn) -> None:
        """Its text, without what was only thought."""
        text = turn.said.strip()
        self.note(copy(self.app, text) if text else "There is nothing to copy.")

    def copy_code(self, turn: Turn, number: int | None = None) -> None:
        """One code block of a reply, the last if no number is given."""
        blocks: Sequence[str] = code_blocks(turn.said)
        if not blocks:
            self.note("There is no code block in this reply.", "warning")
        elif number is not None and not 1 <= number <= len(blocks):
            self.note(f"This reply has {len(blocks)} code blocks.", "warning")
        else:
            self.note(copy(self.app, blocks[(number or len(blocks)) - 1].rstrip("\n")))

    def _question_of(self, turn: Turn) -> UserTurn | None:
        """The question itself, or the one that a reply answers."""
        turns = self.transcript.turns
        before = reversed(turns[: turns.index(turn) + 1]) if turn in turns else iter(())
        return next((other for other in before if isinstance(other, UserTurn)), None)

    def saved(self, turn: Turn) -> int | None:
        """Its place in the history, None if it has none. What could not be written so far is written now, if it can be.

        Raises HistoryError.
        """
        if turn.shown.id is None:
            self.journal.settle()
            self.transcript.identify(map(Shown.of, self.journal.store.path(self.journal.leaf)))
        return turn.shown.id

    def edit(self, turn: Turn) -> None:
        """Open a question in the box; a running reply goes on until the new version is sent."""
        question = self._question_of(turn)
        if question is None or self.saved(question) is None:
            self.note("This message cannot be edited: it is not saved.", "warning")
            return
        self.editing = question
        send, leave = self.key("send"), self.key("escape")
        self.dock.open_earlier(
            question.shown.text, f"Editing an earlier message: {send} sends a new version, {leave} leaves it"
        )
        self.show_state()

    def leave_editing(self) -> None:
        """The box is for new messages again."""
        self.editing = None
        self.dock.close_earlier()
        self.show_state()

    def resend(self, question: UserTurn, text: str, attached: tuple[Attachment, ...]) -> None:
        """Send a new version of a question; the old one and what followed stay on their branch."""
        self.leave_editing()
        if self.is_elsewhere:
            self.note("The new version is sent once the reply in another conversation has ended.")
        self.when_idle(partial(self._resend, question, compose(attached, text), text), stop=not self.is_elsewhere)

    async def _resend(self, question: UserTurn, whole: str, typed: str) -> None:
        if question.shown.id is None or not question.is_attached:
            self.dock.give_back(typed)
            return
        with self.giving_back(typed):
            before = self.journal.before(question.shown.id)
            await self.transcript.begin()
            message = self.journal.ask_anew(question.shown.id, whole, self.dock.kept)
            self.session.messages = before
            await self.transcript.truncate(question)
            await self.play_question(whole, message, typed)

    def regenerate(self, turn: Turn) -> None:
        """Have a question answered once more, after asking if a reply is being written; the old one stays."""
        question = self._question_of(turn)
        id = self.saved(question) if question is not None else None
        if question is None or id is None:
            self.note("There is no saved message to answer again.", "warning")
            return
        again = partial(self._regenerate, question, id)
        if self.play.now is None or not self.play.now.is_reply:
            self.when_idle(again)
            return
        sentence = "A reply is being written. Answering again stops it; what came so far stays."
        question_screen = Question(sentence, "Stop it and answer again", self.keymap)
        self.app.push_screen(question_screen, lambda yes: self.when_idle(again) if yes else None)

    async def _regenerate(self, question: UserTurn, id: int) -> None:
        if not question.is_attached:
            return
        self.session.messages = self.journal.before(id)
        await self.transcript.begin()
        self.journal.answer_anew(id)
        following = self.transcript.turns[self.transcript.turns.index(question) + 1 :]
        if following:
            await self.transcript.truncate(following[0])
        turn = ReplyTurn(by_origin=self.transcript.by_origin)
        await self.transcript.add(turn)
        self._play(Running(Stream(self.session.send(question.shown.text), "reply"), turn))

    def go_on(self, turn: Turn) -> None:
        """Have the last reply written on, if it was cut short."""
        last = self.transcript.turns[-1] if self.transcript.turns else None
        if self.busy:
            self.say_busy()
        elif turn is not last or not isinstance(turn, ReplyTurn) or turn.shown.finish not in _UNFINISHED:
            self.note("Only a last reply that was stopped can be written on.", "warning")
        elif not self._has_begun(turn):
            self.note(f"There is no text to go on from: {self.key('regenerate')} has it written again.", "warning")
        else:
            if (id := self.saved(turn)) is not None:
                self.journal.go_on(id)
            turn.reopen()
            self.transcript.follow()
            self._play(Running(Stream(self.session.go_on(), "reply"), turn))

    def _has_begun(self, turn: ReplyTurn) -> bool:
        """Whether the session has text of this reply; of one that failed at once it has only what was said before."""
        last = self.session.messages[-1:]
        return bool(turn.shown.text or turn.shown.thoughts) and any(message.role == "assistant" for message in last)

    def _say_one_version(self, turn: Turn) -> None:
        question, previous = self._question_of(turn), self.key("previous_turn")
        edit, again = self.key("edit"), self.key("regenerate")
        if question is not None and question is not turn and question.shown.branches > 1:
            self.transcript.select(turn)  # unmarked, it would be what the key selects
            count = question.shown.branches
            said = f"This is the reply to one of {count} versions of a message: {previous} selects that."
        else:
            said = f"There is one version of this only: {edit} edits a message, {again} has a reply written again."
        self.dock.note(said, about="versions")

    async def _show_version(self, turn: Turn, by: int) -> None:
        id = self.saved(turn)
        if id is None or turn.shown.branches < 2:
            self._say_one_version(turn)
            return
        if self.busy:
            self.say_busy()
            return
        versions = self.journal.store.branches(id)
        at = turn.shown.branch - 1 + by
        if 0 <= at < len(versions):
            await self.show_branch(self.journal.store.switch(versions[at].id).leaf)
            self.transcript.select(next((t for t in self.transcript.turns if t.shown.id == versions[at].id), None))
