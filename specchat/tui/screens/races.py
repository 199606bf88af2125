"""`/race`: what is raced on, and what becomes of the results.

Contract: a race asks first where a reply is being written, and leaves the conversation as it was unless its results
are kept. Kept, both replies are versions of one turn, plain's the one before the one that is shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from specchat.engine.policy import Mode, Speculation
from specchat.engine.replies import Message
from specchat.errors import SpecchatError
from specchat.session import compose
from specchat.tui import attach
from specchat.tui.race import OTHER, PLAIN, Race
from specchat.tui.screens.question import Question
from specchat.tui.screens.race import RaceScreen
from specchat.tui.screens.talk import Talk
from specchat.tui.widgets.turns import UserTurn


@dataclass(frozen=True, slots=True)
class Subject:
    """What is raced on: a message of the conversation (`question` is its id in the history), or a new one."""

    turns: tuple[Message, ...]
    question: int | None = None


class Races(Talk):
    """The part of the chat screen that races."""

    last_on: Speculation  # what speculation was when it was on last
    _raced = 0

    def race(self, text: str) -> None:
        """Race on `text` as the next message, or on the last one if it is empty. Raises SpecchatError."""
        running = self.play.now
        if running is None:
            self._race(self._subject(text))
        elif not running.is_reply:
            raise SpecchatError("The models are still being loaded.")
        else:
            sentence = "A reply is being written. A race stops it; what came so far stays."
            self.app.push_screen(Question(sentence, "Stop it and race", self.keymap), partial(self._answered, text))

    def _answered(self, text: str, yes: bool | None) -> None:
        if yes:
            self.when_idle(partial(self._race_later, text))

    async def _race_later(self, text: str) -> None:
        self._race(self._subject(text))

    def _subject(self, text: str) -> Subject:
        session = self.session
        if text:
            whole = compose((*session.attachments, *attach.find(text)), text)
            return Subject((*session.messages, Message("user", whole)))
        last = next((turn for turn in reversed(self.transcript.turns) if isinstance(turn, UserTurn)), None)
        id = self.saved(last) if last is not None else None
        if last is None or id is None:
            raise SpecchatError("There is no message to race on yet: /race PROMPT gives one.")
        return Subject((*self.journal.before(id), Message("user", last.shown.text)), id)

    def _race(self, subject: Subject) -> None:
        now = self.session.speculation
        wish = self.last_on if now.mode is Mode.OFF else now

        def make() -> Race:
            self._raced += 1  # whichever runs first has the cooler machine: they take turns
            return Race(subject.turns, wish, plain_first=self._raced % 2 == 1)

        self.app.push_screen(RaceScreen(self.session, make, dict(self.keymap)), partial(self._raced_on, subject))

    async def _raced_on(self, subject: Subject, kept: Race | None) -> None:
        if kept is not None:
            await self._keep(subject, kept)
        async with self.turn:  # a message that waited for the reply that the race stopped
            if self.play.now is None:
                await self._go_on(failed=False)

    async def _keep(self, subject: Subject, race: Race) -> None:
        await self.transcript.begin()
        question = subject.question
        if question is None:
            message, _ = self.journal.ask(subject.turns[-1].content, self.dock.kept)
            self.session.attachments = ()
            question = message.id if message is not None else None
        else:
            self.journal.answer_anew(question)
        if question is None:  # the history cannot be written, and has said so
            return
        self.journal.end(race.replies[PLAIN])
        self.journal.answer_anew(question)
        self.journal.end(race.replies[OTHER])
        await self.show_branch(self.journal.leaf)
        self.figures = race.replies[OTHER].figures
        await self.transcript.add_notice(
            f"{race.verdict} {race.outcome} Plain's reply with its figures is the version before this one."
        )
        self.show_state()
