"""The chat: the conversation, the box, the status line.

Contract: at most one stream of the session runs at a time, in a thread of its own (`tui.stream`); this screen takes
its events about ten times a second, less often where showing them is slow, and is the only one to call the session.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Markdown, OptionList, TextArea

from specchat.engine.policy import Mode, Speculation
from specchat.engine.stats import Figures
from specchat.errors import SpecchatError
from specchat.session import Session
from specchat.tui import figures as words
from specchat.tui.actions import ACTIONS, Place, bindings, key_name, keys_of
from specchat.tui.clipboard import copy
from specchat.tui.commands import CommandError, CommandRunner, invocation
from specchat.tui.completion import candidates
from specchat.tui.recall import Recall
from specchat.tui.reply import Reply
from specchat.tui.screens.help import HelpScreen
from specchat.tui.stream import Stream
from specchat.tui.text import one_line
from specchat.tui.widgets.completions import Completions
from specchat.tui.widgets.hints import Hints
from specchat.tui.widgets.note import Note
from specchat.tui.widgets.prompt import PromptBox
from specchat.tui.widgets.status import StatusLine
from specchat.tui.widgets.transcript import Transcript
from specchat.tui.widgets.turns import ReplyTurn, UserTurn
from specchat.tui.widgets.welcome import EXAMPLES, Welcome

_INTERVAL: Final = 0.1  # seconds between two updates; twice as often costs the engine 12 % of its speed, this 6 %
_SHARE: Final = 0.2  # of one core: updates that take longer come less often
_QUIT_WINDOW: Final = 2.0  # seconds within which a second Ctrl+C quits
# What the next round will use once this was asked for; "" where only the engine knows.
_DRAFTER: Final = {Mode.DRAFT: "draft", Mode.NGRAM: "ngram", Mode.OFF: "plain", Mode.AUTO: ""}


@dataclass(slots=True)
class Running:
    """A stream under way: the loading of the models if it has no turn, else a reply."""

    stream: Stream
    reply: Reply = field(default_factory=Reply)
    turn: ReplyTurn | None = None
    asked: UserTurn | None = None


class ChatScreen(Screen[None]):
    """One conversation with one session."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.SCREEN)]
    AUTO_FOCUS = "#prompt"

    def __init__(self, session: Session, keymap: dict[str, str]) -> None:
        super().__init__()
        self.session: Final = session
        self._keymap = keymap
        self._commands = CommandRunner(self)
        self._recall = Recall()
        self._under_way: Running | None = None
        self._figures = Figures()  # the latest known
        self._queued = ""
        self._anew = False  # start a new conversation once the stream has ended
        self._last_on = Speculation()
        self._quit_armed = float("-inf")
        self._resume_at = 0.0
        self._clock: Timer | None = None
        self._showing = asyncio.Lock()
        self._leaving = False

    def compose(self) -> ComposeResult:
        yield Transcript()
        with Vertical(id="dock"):
            yield Note("queued")
            yield Note("note")
            yield Completions()
            yield PromptBox()
            yield StatusLine(id="status")
            yield Hints(id="hints")

    # ---- streams

    async def on_mount(self) -> None:
        self._clock = self.set_interval(_INTERVAL, self._tick, pause=True)
        await self._welcome()
        if self.session.speculation.mode is not Mode.OFF:
            self._last_on = self.session.speculation
        if self.session.info is None:
            self._start(Running(Stream(self.session.load(), "load")))
        self._show_state()

    def _start(self, running: Running) -> None:
        self._under_way, self._resume_at = running, 0.0
        if self._clock:
            self._clock.resume()
        self._show_state()

    async def _tick(self) -> None:
        began = time.monotonic()
        if self._under_way is None or self._leaving or began < self._resume_at:
            return
        async with self._showing:
            await self._take_events(self._under_way)
        now = time.monotonic()
        self._resume_at = now + (now - began) * (1 / _SHARE - 1) - _INTERVAL

    async def wind_down(self) -> None:
        """Stop the reply and show no more of it: widgets mounted while the application closes can upset it."""
        self._leaving = True
        self.session.stop()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._showing.acquire(), 1.0)

    async def _take_events(self, running: Running) -> None:
        events, ended = running.stream.take()
        for event in events:
            running.reply.add(event)
        if events:
            if running.turn is not None:
                await running.turn.update_from(running.reply)
            if running.reply.figures.passes:
                self._figures = running.reply.steady
            self._show_state()
        if ended:
            await self._ended(running)

    async def _ended(self, running: Running) -> None:
        if self._clock:
            self._clock.pause()
        error = running.stream.error
        if running.turn is None:
            await self._load_ended(error)
        else:
            await self._reply_ended(running.reply, running.turn, running.asked, error)
        self._under_way = None
        self._show_state()
        await self._go_on(failed=error is not None)

    async def _load_ended(self, error: Exception | None) -> None:
        transcript = self.query_one(Transcript)
        if error is not None:
            await transcript.add_notice(_sentence(error), "failure")
            return
        for welcome in self.query(Welcome):
            await welcome.recompose()
        for sentence in self.session.info.notices if self.session.info else ():
            await transcript.add_notice(sentence)

    async def _reply_ended(
        self, reply: Reply, turn: ReplyTurn, asked: UserTurn | None, error: Exception | None
    ) -> None:
        if error is not None:
            reply.finish = "error"
        await turn.finish(reply)
        if error is None:
            return
        await turn.fail(_sentence(error))
        if reply.message is None and asked is not None:
            # The session has forgotten this turn: say so, and give the words back.
            asked.add_class("-unsent")
            turn.add_class("-unsent")
            self._give_back(asked.text)

    async def _go_on(self, failed: bool) -> None:
        """Do what was waiting for the stream to end."""
        if self._anew:
            self._anew = False
            await self._clear()
        queued, self._queued = self._queued, ""
        self.query_one("#queued", Note).hush()
        if queued and failed:
            self._give_back(queued)
        elif queued:
            await self._send(queued)

    # ---- sending

    @on(PromptBox.Submitted)
    async def _submitted(self, event: PromptBox.Submitted) -> None:
        text = event.text.strip()
        if not text:
            return
        if self._take_completion(text):
            return
        try:
            command = invocation(text)
            said = self._commands.run(*command) if command else ""
        except CommandError as error:
            self.note(str(error), "error")
            return
        if not command and self._queued:
            self.note("One message is waiting already; ↑ in the empty box takes it back.", "warning")
            return
        self.query_one(PromptBox).replace_all("")
        self._recall.add(text)
        if said:
            self.note(said)
        if not command:
            await self._send(text)

    async def _send(self, text: str) -> None:
        if self._under_way is not None:
            self._queued = text
            self.query_one("#queued", Note).say(f"Next: {one_line(text)}")
            return
        transcript = self.query_one(Transcript)
        await transcript.begin()
        turn, asked = ReplyTurn(), UserTurn(text)
        await transcript.add(asked, turn)
        self._figures = replace(self._figures, passes=0)
        self._start(Running(Stream(self.session.send(text), "reply"), turn=turn, asked=asked))

    def _give_back(self, text: str) -> None:
        """Put a message that was not sent in front of what the box holds."""
        box = self.query_one(PromptBox)
        if text.strip() != box.text.strip():
            box.replace_all("\n\n".join(filter(None, (text, box.text))))

    async def _welcome(self) -> None:
        keys = {action.name: key_name(keys_of(action, self._keymap)[0]) for action in ACTIONS}
        await self.query_one(Transcript).add_welcome(Welcome(self.session, keys))

    async def _clear(self) -> None:
        self.session.messages = ()
        self._figures = Figures()
        await self.query_one(Transcript).clear()
        await self._welcome()
        self._show_state()

    # ---- what the screen shows

    def _show_state(self) -> None:
        """Bring the status line, the box's border and the hints up to date."""
        info, running, wish = self.session.info, self._under_way, self.session.speculation
        live = running is not None and running.turn is not None
        segments = words.status(wish, self._figures, live, info.n_ctx if info else 0)
        progress = running.reply.progress if running and running.turn is None else None
        if progress is not None:
            segments = [segments[0], *words.progress(progress)]
        self.query_one("#status", StatusLine).show(segments)
        reason = words.why_not_as_asked(wish, self._figures, info.draft_obstacle if info else "")
        box = self.query_one(PromptBox)
        box.border_subtitle = Content.styled(one_line(reason), "$foreground 60%") if reason else None
        off = wish.mode is Mode.OFF
        labels = {"help": "", "toggle_speculation": "Speculation on" if off else "Speculation off"}
        if live:
            labels["escape"] = "Stop"
        labels |= {"new": "", "command_palette": "", "quit": ""}
        self.query_one(Hints).show_actions(labels, self._keymap)

    def note(self, sentence: str, severity: str = "information") -> None:
        """Say something in place, above the box."""
        self.query_one("#note", Note).say(sentence, severity)

    # ---- the box

    @on(TextArea.Changed, "#prompt")
    def _changed(self, event: TextArea.Changed) -> None:
        if event.text_area.text:  # emptied by sending: what was said about that stays
            self.query_one("#note", Note).hush()
        box = self.query_one(PromptBox)
        offers = candidates(event.text_area.text)
        self.query_one(Completions).offer(offers)
        box.completing = bool(offers)

    def _take_completion(self, text: str = "") -> bool:
        """Put the highlighted completion in the box; False if there is none or `text` is it already."""
        chosen = self.query_one(Completions).chosen
        if chosen is None or chosen.text.strip() == text:
            return False
        self.query_one(PromptBox).replace_all(chosen.text)
        return True

    @on(PromptBox.CompletionAsked)
    def _complete(self) -> None:
        if not self._take_completion():
            self.query_one(Transcript).focus()

    @on(OptionList.OptionSelected, "#completions")
    def _completion_clicked(self) -> None:
        self._take_completion()

    @on(PromptBox.Stepped)
    def _step(self, event: PromptBox.Stepped) -> None:
        box = self.query_one(PromptBox)
        if box.completing:
            self.query_one(Completions).move(event.by)
            return
        if self._queued and event.by < 0 and not box.text:
            box.replace_all(self._queued)
            self._queued = ""
            self.query_one("#queued", Note).hush()
            return
        earlier = self._recall.step(event.by, box.text)
        if earlier is not None:
            box.replace_all(earlier)

    @on(PromptBox.Paged)
    def _page(self, event: PromptBox.Paged) -> None:
        transcript = self.query_one(Transcript)
        (transcript.action_page_up if event.by < 0 else transcript.action_page_down)()

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
        self._figures = replace(self._figures, drafter=_DRAFTER[speculation.mode], reason="")
        self._show_state()

    def action_toggle_speculation(self) -> None:
        now = self.session.speculation
        off = now.mode is Mode.OFF
        self.ask_speculation(self._last_on if off else replace(now, mode=Mode.OFF))

    def show_help(self) -> None:
        """Open the help screen."""
        self.app.push_screen(HelpScreen(self._keymap))

    def action_help(self) -> None:
        self.show_help()

    def start_anew(self) -> None:
        """Begin a new conversation, once a running reply has stopped."""
        if self._under_way is not None and self._under_way.turn is not None:
            self._anew = True
            self.session.stop()
        else:
            self.call_later(self._clear)

    def action_new(self) -> None:
        self.start_anew()

    @property
    def busy(self) -> bool:
        """Whether a reply is being written or a model loaded."""
        return self._under_way is not None

    def leave(self) -> None:
        """Quit."""
        self.call_later(self.app.action_quit)

    def action_escape(self) -> None:
        """Close the innermost thing: completions, a reply, a note; else go back to the box."""
        box = self.query_one(PromptBox)
        if box.completing:
            self.query_one(Completions).offer(())
            box.completing = False
        elif self.get_selected_text():
            self.clear_selection()
        elif self._under_way is not None and self._under_way.turn is not None:
            self._stop_reply()
        else:
            self.query_one("#note", Note).hush()
            box.focus()

    def _stop_reply(self) -> None:
        self.session.stop()
        self.note("Stopping…")

    def action_interrupt(self) -> None:
        """Copy a selection, else clear the box, else stop the reply, else quit on a second press."""
        box = self.query_one(PromptBox)
        selected = box.selected_text or self.get_selected_text()
        if selected:
            self.note(copy(self.app, selected))
        elif box.text:
            box.replace_all("")
        elif self._under_way is not None and self._under_way.turn is not None:
            self._stop_reply()
        elif time.monotonic() - self._quit_armed < _QUIT_WINDOW:
            self.leave()
        else:
            self._quit_armed = time.monotonic()
            self.note("Press Ctrl+C again to quit.")

    def action_end(self) -> None:
        self.query_one(Transcript).follow()

    async def action_example_1(self) -> None:
        await self._example(0)

    async def action_example_2(self) -> None:
        await self._example(1)

    async def _example(self, index: int) -> None:
        if not self.query(Welcome) or not self.session.launch.is_demo or self._queued:
            return
        self.ask_speculation(replace(self.session.speculation, mode=EXAMPLES[index].mode))
        await self._send(EXAMPLES[index].prompt)

    async def action_run_hint(self, name: str) -> None:
        """A hint of the footer was clicked."""
        await self.run_action(f"app.{name}" if name in ("quit", "command_palette") else name)


def _sentence(error: Exception) -> str:
    if isinstance(error, SpecchatError):
        text = str(error)
        return text[:1].upper() + text[1:] if text.split(" ", 1)[0].isalpha() else text
    return f"Something went wrong inside specchat: {type(error).__name__}: {error}"
