"""The chat: the conversation, the box, the status line, the keys.

Contract: this screen alone calls the session and the journal. What is said and what comes back is in `screens.talk`,
what is done with one turn of the conversation in `screens.turns`; what plays the session's streams is `tui.playback`.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import ClassVar, Final

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.message import Message
from textual.widgets import Markdown

from specchat.engine.policy import Mode, Speculation
from specchat.errors import SpecchatError
from specchat.history import Conversation, Store
from specchat.session import Session
from specchat.tui import editor
from specchat.tui import figures as words
from specchat.tui.actions import ACTIONS, Place, bindings
from specchat.tui.clipboard import copy
from specchat.tui.commands import CommandRunner
from specchat.tui.model_commands import Opener
from specchat.tui.screens.conversations import ConversationsScreen
from specchat.tui.screens.help import HelpScreen
from specchat.tui.screens.pulls import Pulls
from specchat.tui.screens.races import Races
from specchat.tui.screens.windows import LOOK
from specchat.tui.text import as_sentence, one_line
from specchat.tui.widgets.dock import Dock
from specchat.tui.widgets.panel import LEAST, Panel, WithPanel
from specchat.tui.widgets.transcript import Transcript
from specchat.tui.widgets.welcome import EXAMPLES, Example, Welcome
from specchat.worker.client import EngineDied

_QUIT_WINDOW: Final = 2.0  # seconds within which a second Ctrl+C quits
_UNSENT: Final = 0.6  # seconds after the last key at which the box is surely on disk
_BEGINNING: Final = 5.0  # seconds that the first picture of a long conversation may take
# What the next round will use once this was asked for; "" where only the engine knows.
_DRAFTER: Final = {Mode.DRAFT: "draft", Mode.NGRAM: "ngram", Mode.OFF: "plain", Mode.AUTO: ""}


class ChatScreen(Races, Pulls):
    """One conversation at a time, with one session."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.SCREEN)]
    AUTO_FOCUS = "#prompt"

    class Unloaded(Message):
        """The engine gave its memory back: nobody had used it for a while, or it died (`why` says of what)."""

        def __init__(self, why: str = "") -> None:
            super().__init__()
            self.why = why

    def __init__(
        self,
        session: Session,
        store: Store,
        keymap: dict[str, str],
        resume: Conversation | None = None,
        choose: bool = False,
        opener: Opener | None = None,
        warning: str = "",
    ) -> None:
        """`resume` is the conversation to begin with; `choose` begins with the list of all; `warning` is shown."""
        super().__init__(session, store, keymap)
        self._resume, self._choose, self._warning = resume, choose, warning
        self.commands = CommandRunner(self, opener)
        self.last_on = Speculation()
        self._quit_armed = float("-inf")
        self._begun = asyncio.Event()

    def compose(self) -> ComposeResult:
        with WithPanel(id="main"):
            yield Transcript()
            yield Panel()
        yield Dock(self.keymap)

    async def on_mount(self) -> None:
        self.play = self._make_playback()
        if self.session.speculation.mode is not Mode.OFF:
            self.last_on = self.session.speculation
        with self.telling():
            await self._go_on_with(self._resume)
        if self.journal.conversation is None:
            await self.welcome()
        aside = self.journal.store.set_aside
        for sentence in filter(None, (self._warning, aside.sentence if aside else "")):
            await self.transcript.add_notice(as_sentence(sentence), "failure")
        self.session.on_idle = self._say_unloaded
        self.session.on_death = self._say_unloaded
        if self.session.info is None:
            self.load()
        self.show_state()
        if self._choose:
            self.action_conversations()
        self.set_interval(LOOK, partial(self.call_later, self.look))
        self._begun.set()

    async def _go_on_with(self, conversation: Conversation | None) -> None:
        if conversation is not None:
            await self.open_conversation(conversation)
            if self.session.launch.sources.get("system") == "command line":
                self.session.system_prompt = self.session.launch.system_prompt

    def _say_unloaded(self, death: EngineDied | None = None) -> None:
        self.post_message(self.Unloaded(as_sentence(death) if death else ""))

    async def wind_down(self) -> None:
        """Stop the reply, put what is on the screen on disk, and show nothing more."""
        # A signal may come first; leaving a screen that is half there would end in a traceback.
        with suppress(TimeoutError):
            await asyncio.wait_for(self._begun.wait(), _BEGINNING)
        self.session.stop()
        await self.play.wind_down()
        if self.pull is not None:
            await self.pull.stop()
        # Before the loop ends: it waits for threads, and these for an engine that may hang.
        await asyncio.to_thread(self.session.close)
        self.finish_writing()
        self.journal.settle()
        self.journal.keep_unsent(self.dock.kept, now=True)

    # ---- what the screen shows

    def show_state(self) -> None:
        """Bring the status line, the box's border, the hints and the panel up to date."""
        info, running, wish = self.session.info, self.play.now, self.session.speculation
        live = self._is_replying_here
        segments = words.status(wish, self.figures, live, info.n_ctx if info else 0)
        progress = running.reply.progress if running and not running.is_reply else None
        if progress is not None:
            segments = [segments[0], *words.progress(progress)]
        elif info is None and running is None:
            segments = [segments[0], *words.unloaded()]
        elif self.is_elsewhere:
            segments = [segments[0], words.elsewhere()]
        dock = self.dock
        dock.status.show(segments)
        reason = words.why_not_as_asked(wish, self.figures, words.no_draft(wish, info))
        dock.explain(reason)
        dock.hints.show_actions(self._hints(), self.keymap)
        self.query_one(Panel).show(wish, self.figures, info, reason)

    @property
    def _is_replying_here(self) -> bool:
        return self.is_replying and not self.is_elsewhere

    @property
    def _can_stop(self) -> bool:
        """Whether there is a reply to stop: the one that is shown, or any where the engine does not hear of it."""
        return self._is_replying_here or self.stopping.is_deaf

    def _hints(self) -> dict[str, str]:
        """The actions that make sense now, with their labels where they differ."""
        labels = {"help": ""}
        stop = "End the engine" if self.stopping.is_deaf else "Stop"
        if self.transcript.has_focus:
            labels |= {action.name: "" for action in ACTIONS if action.place is Place.CONVERSATION}
            return labels | {"escape": stop if self._can_stop else "To the box"}
        off = self.session.speculation.mode is Mode.OFF
        labels["toggle_speculation"] = "Speculation on" if off else "Speculation off"
        if self._can_stop or self.editing is not None:
            labels["escape"] = "Leave" if self.editing is not None else stop
        if not self.transcript.at_end:
            labels["end"] = ""
        if self.journal.elsewhere is not None:
            labels["elsewhere"] = ""
        return labels | {"new": "", "conversations": "", "command_palette": "", "quit": ""}

    @on(Unloaded)
    async def _unloaded(self, event: Unloaded) -> None:
        if event.why:
            await self.transcript.add_notice(event.why, "failure")
        self.show_state()

    @on(events.TextSelected)
    def _selected(self) -> None:
        """Words that are typed after text was selected are a message, not the conversation's keys."""
        if self.get_selected_text():  # a click alone selects nothing, and leads into the conversation
            self.dock.box.focus()

    @on(Transcript.Moved)
    @on(events.DescendantFocus)
    def _other_hints(self) -> None:
        self.show_state()

    def action_complete(self) -> None:
        if not self.dock.take_completion():
            self.set_focus(self.transcript)

    def action_command(self) -> None:
        """A slash in the conversation begins a command in the box, as one typed there does."""
        self.set_focus(self.dock.box)  # at once: what is typed next is the command's name
        self.dock.box.insert("/")

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
            self.last_on = speculation
        self.session.set_speculation(speculation)
        self.dock.hush("speculation")
        self.figures = replace(self.figures, drafter=_DRAFTER[speculation.mode], reason="")
        self.show_state()

    def action_toggle_speculation(self) -> None:
        now = self.session.speculation
        off = now.mode is Mode.OFF
        idle_auto = now.mode is Mode.AUTO and self.figures.passes > 0 and self.figures.drafter == "plain"
        self.ask_speculation(self.last_on if off else replace(now, mode=Mode.OFF))
        if idle_auto:
            said = "It was plain already: drafting does not pay here. /speculation draft forces it."
            self.dock.note(said, about="speculation")

    def action_help(self) -> None:
        self.app.push_screen(HelpScreen(self.keymap))

    async def action_new(self) -> None:
        await self.start_anew()

    def action_conversations(self, query: str = "") -> None:
        self.journal.keep_unsent(self.dock.kept, now=True)
        screen = ConversationsScreen(self.journal.store, self.journal.shown_id, self.keymap, query)
        self.app.push_screen(screen, self._conversation_chosen)

    async def _conversation_chosen(self, chosen: Conversation | None) -> None:
        if chosen is not None and chosen.id != self.journal.shown_id:
            await self.open_conversation(chosen)
        elif self.journal.shown_id and self.journal.is_deleted():
            await self.start_anew()

    def action_metrics(self) -> None:
        if self.size.width < LEAST:
            self.note(f"The panel needs {LEAST} columns.", "warning")
            return
        self.query_one(Panel).toggle(self.size.width)
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
            self.note(as_sentence(error), "error")
        else:
            self.dock.box.replace_all(text)
            self.dock.box.focus()
        self.app.refresh()

    async def action_escape(self) -> None:
        """Close the innermost thing: completions, a selection, an edit, a reply, a note; else go back to the box."""
        if self.dock.close_completions():
            return
        if self.get_selected_text():
            self.clear_selection()
        elif self.editing is not None:
            self.dock.empty()
            self.leave_editing()
        elif self._can_stop:
            self.stop_reply()
        else:
            self.dock.hush()
            self.dock.box.focus()
            if self.is_elsewhere:
                back, stop = self.key("conversations"), self.key("escape")
                self.note(
                    f"A reply is being written in another conversation; {back} leads there, where {stop} stops it."
                )
            if self.is_loading:
                self.note("The models are being loaded; /unload ends that.")

    def stop_reply(self) -> None:
        """End the running reply at its next round, or with its engine where that was asked for in vain."""
        self.note("Ending the engine…" if self.stopping.is_deaf else "Stopping…")
        self.stopping.press()

    def action_interrupt(self) -> None:
        """Copy a selection, else clear the box, else stop the reply, else quit on a second press."""
        box = self.dock.box
        selected = box.selected_text or self.get_selected_text()
        if selected:
            self.note(copy(self.app, selected))
        elif box.text:
            self.dock.empty()
        elif self._can_stop:
            self.stop_reply()
        elif time.monotonic() - self._quit_armed < _QUIT_WINDOW:
            self.leave()
        else:
            self._quit_armed = time.monotonic()
            self.note(f"Press {self.key('interrupt')} again to quit.")

    @on(Dock.Changed)
    def _goes_on_writing(self, event: Dock.Changed) -> None:
        if event.text:  # whoever writes on does not want to quit
            self._quit_armed = float("-inf")

    def leave(self) -> None:
        """Quit."""
        self.call_later(self.app.action_quit)

    def action_end(self) -> None:
        self.transcript.follow()

    def action_page(self, by: int) -> None:
        (self.transcript.action_page_up if by < 0 else self.transcript.action_page_down)()

    async def action_first_example(self) -> None:
        await self._try(EXAMPLES[0])

    async def action_second_example(self) -> None:
        await self._try(EXAMPLES[1])

    async def _try(self, example: Example) -> None:
        if not self.session.launch.is_demo:
            self.note("The examples are for the demo pair: /model demo loads it.")
            return
        if not self.query(Welcome) or self.dock.queued:
            self.note(f"The examples are for an empty chat: {self.key('new')} starts one.")
            return
        self.ask_speculation(replace(self.session.speculation, mode=example.mode))
        wish = words.wish(self.session.speculation)
        said = f"Speculation is set to {wish} for this example; /speculation auto undoes that."
        self.dock.note(said, about="speculation")
        await self._send(example.prompt)

    async def action_run_hint(self, name: str) -> None:
        """A hint of the footer was clicked."""
        place = next(action.place for action in ACTIONS if action.name == name)
        await self.app.run_action(name, {Place.APP: self.app, Place.CONVERSATION: self.transcript}.get(place, self))
