"""What is said: messages go out, replies come in, conversations are opened, begun and left.

Contract: the part of the chat screen between the dock, the session and the journal. A message is in the journal before
it is sent; one that gets no answer comes back to the box; one sent while a reply runs waits in the dock. How any of it
looks is the business of `screens.chat`, what is done with turns that are there already that of `screens.turns`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from textual import on

from specchat.engine.stats import Figures
from specchat.engine.threads import default_threads
from specchat.errors import SpecchatError
from specchat.history import Conversation, Message, Store
from specchat.session import Attachment, Launch, Session, compose
from specchat.tui import attach
from specchat.tui.actions import ACTIONS
from specchat.tui.commands import CommandRunner
from specchat.tui.invocation import invocation
from specchat.tui.journal import Journal, spoken
from specchat.tui.playback import Playback, Running
from specchat.tui.reply import Reply
from specchat.tui.screens.windows import OtherWindows
from specchat.tui.shown import Shown
from specchat.tui.stream import Stream
from specchat.tui.text import as_sentence
from specchat.tui.widgets.dock import Dock
from specchat.tui.widgets.panel import Panel
from specchat.tui.widgets.prompt import PromptBox
from specchat.tui.widgets.turns import ReplyTurn, UserTurn
from specchat.tui.widgets.welcome import Welcome
from specchat.worker.client import EngineClosed, EngineKilled, TooLong

_UNSENT: Final = 0.6  # seconds after the last key at which the box is surely on disk
_KILLED: Final = "You ended the engine, which did not answer. The next message starts another."


class Talk(OtherWindows):
    """The part of the chat screen that talks."""

    commands: CommandRunner

    def __init__(self, session: Session, store: Store, keymap: Mapping[str, str]) -> None:
        super().__init__(session, Journal(store, session, self._history_failed))
        self.keymap = keymap
        self._switched: Callable[[bool], None] | None = None
        self._cores = default_threads()

    # ---- streams

    def _make_playback(self) -> Playback:
        return Playback(self, self._show_events, self._ended, self._is_crowded)

    def _is_crowded(self) -> bool:
        info = self.session.info
        return info is not None and info.threads >= self._cores

    def load(self) -> None:
        """Start the engine, and show how far it is."""
        self.play.start(Running(Stream(self.session.load(), "load")))

    def switch_models(self, launch: Launch, wanted: bool, then: Callable[[bool], None]) -> None:
        """Load other models in place of these; `then` is told whether that failed. The conversation stays.

        `wanted` is as `Session.switch` has it.
        """
        self._switched = then
        self.play.start(Running(Stream(self.session.switch(launch, wanted), "load")))
        self.show_state()

    @property
    def is_replying(self) -> bool:
        """Whether a reply is being written."""
        return self.play.now is not None and self.play.now.is_reply

    @property
    def is_loading(self) -> bool:
        """Whether models are being loaded, for no message yet."""
        return self.play.now is not None and not self.play.now.is_reply

    async def _show_events(self, running: Running) -> None:
        if running.turn is not None:
            self.journal.grow(running.reply)
            if running.turn.is_attached:
                await running.turn.update_from(running.reply)
        if running.reply.figures.passes and not self.is_elsewhere:
            self.figures = running.reply.steady
            self.query_one(Panel).speeds.add(self.figures)
        self.show_state()

    async def _ended(self, running: Running) -> None:
        error = running.stream.error
        if self.stopping.over():
            self.dock.hush()  # "Stopping…"
        if running.turn is None:
            await self._load_ended(error)
        elif isinstance(error, EngineKilled):
            error, running.reply.finish = None, "cancelled"
            await self._reply_ended(running, running.turn, None)
            await self.transcript.add_notice(_KILLED)
        else:
            await self._reply_ended(running, running.turn, error)
        async with self.turn:
            self.play.now = None
            self.show_state()
            await self._go_on(failed=error is not None)

    async def _load_ended(self, error: Exception | None) -> None:
        switched, self._switched = self._switched, None
        if switched is not None:
            switched(error is not None)
        for welcome in self.query(Welcome):
            await welcome.recompose()
        if isinstance(error, EngineClosed):
            return  # nobody wanted them any more
        info = self.session.info
        if error is not None:
            again = f" {self.session.launch.name} is loaded again." if switched is not None and info is not None else ""
            await self.transcript.add_notice(f"{as_sentence(error)}{again}", "failure")
            return
        for notice in info.notices if info is not None else ():
            await self.transcript.add_notice(as_sentence(notice))
        if switched is not None:
            self.figures = Figures()
            await self.transcript.add_notice(await self._what_switching_costs())

    async def _what_switching_costs(self) -> str:
        """What other models mean to the conversation that is there."""
        session, info = self.session, self.session.info
        who = f"{session.launch.name} writes from here on."
        if not session.messages or info is None:
            return who
        text = "\n".join(message.content for message in session.messages)
        try:
            tokens = await asyncio.to_thread(session.count_tokens, text)
        except SpecchatError:
            return who
        again = f"{who} It reads the conversation, about {tokens:,} tokens, with the next message"
        if tokens < info.n_ctx:
            return f"{again}."
        return f"{again}, without the oldest turns: its context holds {info.n_ctx:,}."

    async def _reply_ended(self, running: Running, turn: ReplyTurn, error: Exception | None) -> None:
        reply = running.reply
        if error is not None:
            reply.finish = "error"
        message = self.journal.end(reply)
        if not turn.is_attached:  # the conversation was left meanwhile
            self.session.messages = self.journal.said
            if error is not None:
                sentence = as_sentence(error)
                await self.transcript.add_notice(f"The reply in another conversation failed. {sentence}", "failure")
            if message is not None and message.conversation == self.journal.shown_id:
                with self.telling():
                    await self.show_branch(self.journal.leaf)
            return
        if message is not None:
            turn.number(message.id, message.branch, message.branches)
        await turn.finish(reply)
        if error is not None:
            await turn.fail(as_sentence(_with_remedy(error)))
        if reply.message is None and running.asked is not None:
            # The session has forgotten this turn: say so, and give the words back.
            running.asked.add_class("-unsent")
            turn.add_class("-unsent")
            self.session.attachments = running.attached
            self.journal.abandon(running.asked.shown.id)
            self.dock.give_back(running.text)

    def finish_writing(self) -> None:
        """Put on disk what came of a reply that will not be shown to its end."""
        running = self.play.now
        if running is not None and running.is_reply:
            for event in running.stream.take()[0]:
                running.reply.add(event)
            self.journal.end(running.reply)

    async def _go_on(self, failed: bool) -> None:
        """Do what was waiting for the stream to end."""
        then, self.then = self.then, None
        if then is not None:
            await then()
            return
        queued = self.dock.take_queued()
        if queued and failed:
            self.dock.give_back(queued)
        elif queued:
            with self.giving_back(queued):  # an attached file may be gone by now
                await self._send_now(queued)

    # ---- sending

    @on(Dock.Said)
    async def _said(self, event: Dock.Said) -> None:
        text = event.text
        try:
            command = invocation(text)
            said = await self.commands.run(*command) if command else ""
            attached = () if command else attach.find(text)
        except SpecchatError as error:
            self.dock.refuse(text, as_sentence(error))
            return
        if command is None and self.editing is None and self.dock.queued:
            up = self.key("previous")
            self.dock.refuse(text, f"One message is waiting already; {up} in the empty box takes it back.")
            return
        self.dock.recall.add(text)
        if said:
            self.note(said)
        if command is None and self.editing is not None:
            self.resend(self.editing, text, attached)
        elif command is None:
            await self._send(text, attached)
        if attached:
            self.run_worker(self._say_sizes(attached), exit_on_error=False)

    @on(PromptBox.Folded)
    async def _say_size(self, event: PromptBox.Folded) -> None:
        """How many tokens a long paste is. It is kept at once: it cannot be typed again as the last words can."""
        self.journal.keep_unsent(self.dock.kept, now=True)
        self.run_worker(self._count_paste(event.text), exit_on_error=False)

    async def _count_paste(self, text: str) -> None:
        with suppress(SpecchatError):
            tokens = await asyncio.to_thread(self.session.count_tokens, text)
            self.note(f"Pasted {tokens:,} tokens; {self.key('unfold_pastes')} shows them in full.")

    async def say_count(self, text: str) -> None:
        """Say how many tokens a text is, once the engine has a moment for it."""
        try:
            tokens = await asyncio.to_thread(self.session.count_tokens, text)
        except SpecchatError as error:
            self.note(as_sentence(error), "error")
        else:
            self.note(f"{tokens:,} {'token' if tokens == 1 else 'tokens'}.")

    async def _say_sizes(self, attached: tuple[Attachment, ...]) -> None:
        """How many tokens the attached files are; the engine answers between two rounds."""
        sizes = []
        for attachment in attached:
            try:
                tokens = await asyncio.to_thread(self.session.count_tokens, attachment.text)
            except SpecchatError:
                return
            sizes.append(f"{attachment.name} ({tokens:,} {'token' if tokens == 1 else 'tokens'})")
        self.note(f"Attached: {', '.join(sizes)}")

    async def _send(self, text: str, attached: tuple[Attachment, ...] | None = None) -> None:
        async with self.turn:
            with self.giving_back(text):
                await self._send_now(text, attached)

    async def _send_now(self, text: str, attached: tuple[Attachment, ...] | None = None) -> None:
        if self.play.now is not None:
            self.dock.queue(text, ", after the reply in another conversation" if self.is_elsewhere else "")
            return
        if attached is None:
            attached = attach.find(text)
        await self.transcript.begin()
        before, self.session.attachments = self.session.attachments, ()
        whole = compose((*before, *attached), text)
        last = self.journal.leaf
        added, known = False, self.journal.elsewhere
        with suppress(SpecchatError):  # writing will say it
            added = self.journal.look()
        message, forked = self.journal.ask(whole, self.dock.kept, text)
        if message is not None and forked:
            await self._fork(message.parent, last)
        elif added:
            with suppress(SpecchatError):
                await self.announce(known)
        await self.play_question(whole, message, text, before)

    async def _fork(self, ground: int | None, last: int | None) -> None:
        """Say that what is sent now stands on a branch of its own, and show what it stands on if that is not `last`."""
        if ground == last:
            await self.transcript.add_notice(
                f"Another window went on here: this is a branch of its own, {self.key('elsewhere')} shows the other."
            )
            return
        try:
            path = self.journal.store.path(ground)
        except SpecchatError:
            self.journal.end(Reply())  # begun for nothing
            raise
        self.session.messages = spoken(path)
        await self.transcript.show(map(Shown.of, path))
        await self.transcript.add_notice("Another window is writing a reply here: this is a branch beside it.")

    async def welcome(self) -> None:
        """Say what an empty chat says."""
        keys = {action.name: self.key(action.name) for action in ACTIONS}
        await self.transcript.add_welcome(Welcome(self.session, keys))

    # ---- conversations

    async def open_conversation(self, conversation: Conversation) -> None:
        """Show another conversation; a reply being written in this one goes on to its end there."""
        kept = self.journal.keep_unsent(self.dock.kept, now=True)
        path = self.journal.open(conversation)
        assert self.journal.conversation is not None
        self.leave_editing()
        running = self.play.now
        if running is not None and running.turn is not None and path and path[-1].id == self.journal.growing:
            await self._show_growing(running, running.turn, path[:-1])
        else:
            await self.transcript.show(map(Shown.of, path))
        self._figures_of(path)
        self._leave_queued(kept)
        self.dock.box.restore(self.journal.conversation.unsent)
        self.dock.box.focus()
        self.dock.recall.refill(m.content for m in path if m.role == "user")
        if not path:
            await self.welcome()
        self.show_state()

    async def _show_growing(self, running: Running, left: ReplyTurn, before: Sequence[Message]) -> None:
        """Show a conversation whose reply is being written, and go on with that where the reader is."""
        await self.transcript.show(map(Shown.of, before))
        turn = ReplyTurn(
            left.shown if left.shown.text or left.shown.thoughts else None, by_origin=self.transcript.by_origin
        )
        turn.reopen()
        running.turn = turn
        questions = [shown for shown in self.transcript.turns if isinstance(shown, UserTurn)]
        running.asked = questions[-1] if running.asked is not None and questions else None
        await self.transcript.add(turn)
        await turn.update_from(running.reply)

    async def start_anew(self) -> None:
        """Begin a new conversation; a reply being written in the old one goes on to its end there."""
        self.leave_editing()
        if self.dock.text.startswith("/"):
            self.dock.empty()
        self._leave_queued(self.journal.keep_unsent(self.dock.kept, now=True))
        self.journal.close_conversation()
        self.session.messages = ()
        self.session.system_prompt = self.session.launch.system_prompt
        self.figures = replace(self.figures, passes=0, context_used=0)
        await self.transcript.clear()
        await self.welcome()
        self.dock.empty()
        self.dock.box.focus()
        self.show_state()

    def _leave_queued(self, kept: bool) -> None:
        """A message that waits here is not meant for another conversation: it is in the box when one comes back."""
        if kept:
            self.dock.queue("")

    def _history_failed(self, sentence: str) -> None:
        self.note(f"{as_sentence(sentence)} Until that works, what is said is kept on the screen only.", "error")

    @on(Dock.Changed)
    def _box_changed(self) -> None:
        self.set_timer(_UNSENT, lambda: self.journal.keep_unsent(self.dock.kept))


def _with_remedy(error: Exception) -> Exception | str:
    """What went wrong, with what helps in the chat."""
    return f"{error} with /set ctx N" if isinstance(error, TooLong) else error
