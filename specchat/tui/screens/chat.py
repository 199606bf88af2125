"""The chat: the conversation, the box, the status line.

Contract: this screen alone calls the session and the journal. What plays the session's streams is `tui.playback`,
what is done with one turn of the conversation is in `screens.turns`.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import ClassVar, Final

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.widgets import Markdown

from specchat.engine.policy import Mode, Speculation
from specchat.errors import SpecchatError
from specchat.history import Conversation, Store
from specchat.session import Attachment, Session, compose
from specchat.tui import attach, editor
from specchat.tui import figures as words
from specchat.tui.actions import ACTIONS, Place, bindings, key_name, keys_of
from specchat.tui.clipboard import copy
from specchat.tui.commands import CommandRunner, invocation
from specchat.tui.journal import Journal, spoken
from specchat.tui.playback import Playback, Running
from specchat.tui.screens.conversations import ConversationsScreen
from specchat.tui.screens.help import HelpScreen
from specchat.tui.screens.turns import TurnActions
from specchat.tui.shown import Shown
from specchat.tui.stream import Stream
from specchat.tui.text import one_line
from specchat.tui.widgets.dock import Dock
from specchat.tui.widgets.panel import Panel
from specchat.tui.widgets.transcript import Transcript
from specchat.tui.widgets.turns import ReplyTurn
from specchat.tui.widgets.welcome import EXAMPLES, Welcome

_QUIT_WINDOW: Final = 2.0  # seconds within which a second Ctrl+C quits
_UNSENT: Final = 0.6  # seconds after the last key at which the box is surely on disk
_NARROW: Final = 80  # columns below which the panel would leave the conversation too little
# What the next round will use once this was asked for; "" where only the engine knows.
_DRAFTER: Final = {Mode.DRAFT: "draft", Mode.NGRAM: "ngram", Mode.OFF: "plain", Mode.AUTO: ""}


class ChatScreen(TurnActions):
    """One conversation at a time, with one session."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.SCREEN)]
    AUTO_FOCUS = "#prompt"

    def __init__(
        self,
        session: Session,
        store: Store,
        keymap: dict[str, str],
        resume: Conversation | None = None,
        choose: bool = False,
    ) -> None:
        """`resume` is the conversation to begin with; `choose` begins with the list of all."""
        super().__init__(session, Journal(store, session, self._history_failed))
        self._keymap = keymap
        self._resume, self._choose = resume, choose
        self._commands = CommandRunner(self)
        self._last_on = Speculation()
        self._quit_armed = float("-inf")

    def compose(self) -> ComposeResult:
        with Horizontal(id="main"):
            yield Transcript()
            yield Panel()
        yield Dock(self._keymap)

    async def on_mount(self) -> None:
        self.play = Playback(self, self._show_events, self._ended)
        if self.session.speculation.mode is not Mode.OFF:
            self._last_on = self.session.speculation
        if self._resume is not None:
            await self.open_conversation(self._resume)
        else:
            await self._welcome()
        if (aside := self.journal.store.set_aside) is not None:
            await self.transcript.add_notice(_sentence_case(aside.sentence), "failure")
        if self.session.info is None:
            self.play.start(Running(Stream(self.session.load(), "load")))
        self.show_state()
        if self._choose:
            self.action_conversations()

    async def wind_down(self) -> None:
        """Stop the reply, put what is on the screen on disk, and show nothing more."""
        self.session.stop()
        await self.play.wind_down()
        self.journal.keep_unsent(self.dock.text, now=True)

    # ---- streams

    async def _show_events(self, running: Running) -> None:
        if running.turn is not None:
            self.journal.grow(running.reply)
            if running.turn.is_attached:
                await running.turn.update_from(running.reply)
        if running.reply.figures.passes:
            self.figures = running.reply.steady
            self.query_one(Panel).speeds.add(self.figures)
        self.show_state()

    async def _ended(self, running: Running) -> None:
        error = running.stream.error
        if running.turn is None:
            await self._load_ended(error)
        else:
            await self._reply_ended(running, running.turn, error)
        self.play.now = None
        self.show_state()
        await self._go_on(failed=error is not None)

    async def _load_ended(self, error: Exception | None) -> None:
        if error is not None:
            await self.transcript.add_notice(_sentence(error), "failure")
            return
        for welcome in self.query(Welcome):
            await welcome.recompose()
        for sentence in self.session.info.notices if self.session.info else ():
            await self.transcript.add_notice(sentence)

    async def _reply_ended(self, running: Running, turn: ReplyTurn, error: Exception | None) -> None:
        reply = running.reply
        if error is not None:
            reply.finish = "error"
        message = self.journal.end(reply)
        if not turn.is_attached:  # the conversation was left meanwhile
            if message is not None and message.conversation == self.journal.shown_id:
                await self.show_branch(self.journal.leaf)
            elif self.journal.conversation is not None or self.journal.leaf is None:
                self.session.messages = spoken(self.journal.store.path(self.journal.leaf))
            return
        if message is not None:
            turn.number(message.id, message.branch, message.branches)
        await turn.finish(reply)
        if error is not None:
            await turn.fail(_sentence(error))
        if reply.message is None and running.asked is not None:
            # The session has forgotten this turn: say so, and give the words back.
            running.asked.add_class("-unsent")
            turn.add_class("-unsent")
            self.session.attachments = running.attached
            self.journal.abandon(running.asked.shown.id)
            self.dock.give_back(running.text)

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
            await self._send(queued)

    # ---- sending

    @on(Dock.Said)
    async def _said(self, event: Dock.Said) -> None:
        text = event.text
        try:
            command = invocation(text)
            said = await self._commands.run(*command) if command else ""
            attached = () if command else attach.find(text)
        except SpecchatError as error:
            self.dock.refuse(text, str(error))
            return
        if command is None and self.editing is None and self.dock.queued:
            self.dock.refuse(text, "One message is waiting already; ↑ in the empty box takes it back.")
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

    async def _say_sizes(self, attached: tuple[Attachment, ...]) -> None:
        """How many tokens the attached files are; the engine answers between two rounds."""
        sizes = []
        for attachment in attached:
            try:
                tokens = await asyncio.to_thread(self.session.count_tokens, attachment.text)
            except SpecchatError:
                return
            sizes.append(f"{attachment.name} ({tokens:,} tokens)")
        self.note(f"Attached: {', '.join(sizes)}")

    async def _send(self, text: str, attached: tuple[Attachment, ...] | None = None) -> None:
        if self.play.now is not None:
            self.dock.queue(text)
            return
        await self.transcript.begin()
        if attached is None:
            attached = attach.find(text)
        before, self.session.attachments = self.session.attachments, ()
        whole = compose((*before, *attached), text)
        message, forked = self.journal.ask(whole)
        if forked:
            await self.transcript.add_notice("Another window went on here: this is a branch of its own.")
        await self.play_question(whole, message, text, before)

    async def _welcome(self) -> None:
        keys = {action.name: key_name(keys_of(action, self._keymap)[0]) for action in ACTIONS}
        await self.transcript.add_welcome(Welcome(self.session, keys))

    # ---- conversations

    async def open_conversation(self, conversation: Conversation) -> None:
        """Show another conversation; a reply being written in this one goes on to its end there."""
        self.leave_editing()
        self.journal.keep_unsent(self.dock.text, now=True)
        path = self.journal.open(conversation)
        assert self.journal.conversation is not None
        await self.transcript.show(map(Shown.of, path))
        self.figures = next((Shown.of(m).figures for m in reversed(path) if m.role == "assistant"), self.figures)
        self.dock.box.replace_all(self.journal.conversation.unsent)
        self.dock.recall.refill(m.content for m in path if m.role == "user")
        if not path:
            await self._welcome()
        self.show_state()

    async def start_anew(self) -> None:
        """Begin a new conversation; a reply being written in the old one goes on to its end there."""
        self.leave_editing()
        self.journal.keep_unsent("" if self.dock.text.startswith("/") else self.dock.text, now=True)
        self.journal.close_conversation()
        self.session.messages = ()
        self.session.system_prompt = self.session.launch.system_prompt
        self.figures = replace(self.figures, passes=0, context_used=0)
        await self.transcript.clear()
        await self._welcome()
        self.dock.empty()
        self.show_state()

    def _history_failed(self, sentence: str) -> None:
        self.note(f"{_sentence_case(sentence)}. This conversation is not saved any more.", "error")

    @on(Dock.Changed)
    def _box_changed(self) -> None:
        self.set_timer(_UNSENT, lambda: self.journal.keep_unsent(self.dock.text))

    # ---- what the screen shows

    def show_state(self) -> None:
        """Bring the status line, the box's border, the hints and the panel up to date."""
        info, running, wish = self.session.info, self.play.now, self.session.speculation
        live = running is not None and running.is_reply
        segments = words.status(wish, self.figures, live, info.n_ctx if info else 0)
        progress = running.reply.progress if running and not running.is_reply else None
        if progress is not None:
            segments = [segments[0], *words.progress(progress)]
        dock = self.dock
        dock.status.show(segments)
        reason = words.why_not_as_asked(wish, self.figures, words.no_draft(wish, info))
        dock.explain(reason)
        dock.hints.show_actions(self._hints(live), self._keymap)
        self.query_one(Panel).show(wish, self.figures, info, reason)

    def _hints(self, live: bool) -> dict[str, str]:
        """The actions that make sense now, with their labels where they differ."""
        labels = {"help": ""}
        if self.transcript.has_focus:
            labels |= {action.name: "" for action in ACTIONS if action.place is Place.CONVERSATION}
            return labels | {"escape": "Stop" if live else "To the box"}
        off = self.session.speculation.mode is Mode.OFF
        labels["toggle_speculation"] = "Speculation on" if off else "Speculation off"
        if live or self.editing is not None:
            labels["escape"] = "Leave" if self.editing is not None else "Stop"
        if not self.transcript.at_end:
            labels["end"] = ""
        return labels | {"new": "", "conversations": "", "command_palette": "", "quit": ""}

    @on(Transcript.Moved)
    @on(events.DescendantFocus)
    def _other_hints(self) -> None:
        self.show_state()

    def action_complete(self) -> None:
        if not self.dock.take_completion():
            self.set_focus(self.transcript)

    @on(Markdown.LinkClicked)
    def _open_link(self, event: Markdown.LinkClicked) -> None:
        if event.href.startswith(("https://", "http://", "mailto:")):
            self.app.open_url(event.href)
        else:
            self.note(f"Not opened: {one_line(event.href)}", "warning")

    # ---- actions

    def ask_speculation(self, speculation: Speculation) -> None:
        """Set what the user asked for, at once."""
        if speculation.mode is not Mode.OFF:
            self._last_on = speculation
        self.session.set_speculation(speculation)
        self.figures = replace(self.figures, drafter=_DRAFTER[speculation.mode], reason="")
        self.show_state()

    def action_toggle_speculation(self) -> None:
        now = self.session.speculation
        off = now.mode is Mode.OFF
        idle_auto = now.mode is Mode.AUTO and self.figures.passes > 0 and self.figures.drafter == "plain"
        self.ask_speculation(self._last_on if off else replace(now, mode=Mode.OFF))
        if idle_auto:
            self.note("It was plain already: drafting does not pay here. /speculation draft forces it.")

    def action_help(self) -> None:
        self.app.push_screen(HelpScreen(self._keymap))

    async def action_new(self) -> None:
        await self.start_anew()

    def action_conversations(self, query: str = "") -> None:
        self.journal.keep_unsent(self.dock.text, now=True)
        screen = ConversationsScreen(self.journal.store, self.journal.shown_id, self._keymap, query)
        self.app.push_screen(screen, self._conversation_chosen)

    async def _conversation_chosen(self, chosen: Conversation | None) -> None:
        if chosen is not None and chosen.id != self.journal.shown_id:
            await self.open_conversation(chosen)
        elif self.journal.shown_id and self.journal.is_deleted():
            await self.start_anew()

    def action_metrics(self) -> None:
        panel = self.query_one(Panel)
        if not panel.display and self.size.width < _NARROW:
            self.note(f"The panel needs {_NARROW} columns.", "warning")
            return
        panel.display = not panel.display
        self.call_after_refresh(self.show_state)

    def action_origins(self) -> None:
        on = not self.transcript.by_origin
        self.transcript.color_by_origin(on)
        if on:
            self.dock.legend()
        else:
            self.dock.hush()

    def action_editor(self) -> None:
        try:
            with self.app.suspend():
                text = editor.edit(self.dock.text)
        except SpecchatError as error:
            self.note(str(error), "error")
        else:
            self.dock.box.replace_all(text)
        self.app.refresh()

    async def action_escape(self) -> None:
        """Close the innermost thing: completions, a selection, an edit, a reply, a note; else go back to the box."""
        if self.dock.close_completions():
            return
        if self.get_selected_text():
            self.clear_selection()
        elif self.editing is not None:
            self.leave_editing()
            self.dock.empty()
        elif self.play.now is not None and self.play.now.is_reply:
            self.stop_reply()
        else:
            self.dock.hush()
            self.dock.box.focus()

    def stop_reply(self) -> None:
        """End the running reply at its next round."""
        self.session.stop()
        self.note("Stopping…")

    def action_interrupt(self) -> None:
        """Copy a selection, else clear the box, else stop the reply, else quit on a second press."""
        box = self.dock.box
        selected = box.selected_text or self.get_selected_text()
        if selected:
            self.note(copy(self.app, selected))
        elif box.text:
            self.dock.empty()
        elif self.play.now is not None and self.play.now.is_reply:
            self.stop_reply()
        elif time.monotonic() - self._quit_armed < _QUIT_WINDOW:
            self.leave()
        else:
            self._quit_armed = time.monotonic()
            self.note("Press Ctrl+C again to quit.")

    def leave(self) -> None:
        """Quit."""
        self.call_later(self.app.action_quit)

    def action_end(self) -> None:
        self.transcript.follow()

    def action_page(self, by: int) -> None:
        (self.transcript.action_page_up if by < 0 else self.transcript.action_page_down)()

    async def action_example(self, number: int) -> None:
        if not self.query(Welcome) or not self.session.launch.is_demo or self.dock.queued:
            return
        example = EXAMPLES[number - 1]
        self.ask_speculation(replace(self.session.speculation, mode=example.mode))
        await self._send(example.prompt)

    async def action_run_hint(self, name: str) -> None:
        """A hint of the footer was clicked."""
        await self.run_action(f"app.{name}" if name in ("quit", "command_palette") else name)


def _sentence(error: Exception) -> str:
    if isinstance(error, SpecchatError):
        return _sentence_case(str(error))
    return f"Something went wrong inside specchat: {type(error).__name__}: {error}"


def _sentence_case(text: str) -> str:
    """A capital at the beginning, unless it begins with a file's or a pair's name."""
    return text[:1].upper() + text[1:] if text.split(" ", 1)[0].isalpha() else text
