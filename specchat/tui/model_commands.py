"""The slash commands about the models and their settings.

Contract: see `tui.commands`. What is changed here holds for this run, for a pair that is switched to as well; the
settings file is never written.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from specchat import locations, settings, tuning
from specchat.engine.policy import Mode
from specchat.errors import SpecchatError
from specchat.session import Launch
from specchat.tui import figures as words
from specchat.tui.invocation import CommandError
from specchat.tui.screens.models import ModelsScreen
from specchat.tui.screens.question import Question
from specchat.tui.text import as_sentence, one_line
from specchat.tuning import SETTABLE, Tuning
from specchat.units import format_memory
from specchat.worker import ram

if TYPE_CHECKING:
    from specchat.tui.app import SpecchatApp
    from specchat.tui.screens.chat import ChatScreen

# A pair's name or a file, and a draft's file or "auto" if one was asked for -> what to open; raises SpecchatError.
Opener: TypeAlias = Callable[[str, Path | None], Launch]
_DRAFT: Final = re.compile(r"\s+-md(?:\s+(?P<draft>.*))?$")  # as on the command line


class ModelCommands:
    """The part of the command runner that works on models and settings."""

    def __init__(self, screen: ChatScreen, opener: Opener | None = None) -> None:
        self._screen = screen
        self._opener = opener
        self._tuning = Tuning(screen.session.launch)
        self._set_in_app: set[str] = set()
        self._sought = 0  # models asked for: who asks for others meanwhile does not want the ones before

    @property
    def _app(self) -> SpecchatApp:
        return cast("SpecchatApp", self._screen.app)

    # ---- settings

    def run_speculation(self, argument: str) -> str:
        now = self._screen.session.speculation
        if not argument:
            return "Speculation is off." if now.mode is Mode.OFF else f"Speculation is set to {words.wish(now)}."
        if argument not in list(Mode):
            choices = ", ".join(mode.value for mode in Mode)
            raise CommandError(f"There is no drafter {one_line(argument, 40)}; choose one of {choices}.")
        self._screen.ask_speculation(replace(now, mode=Mode(argument)))
        return ""

    def run_depth(self, argument: str) -> str:
        if not argument:
            return f"The depth is set to {self._screen.session.speculation.depth or 'auto'}."
        self._change("depth", argument)
        depth = self._screen.session.speculation.depth
        if depth is None:
            return "The depth is left to the program."
        return f"Up to {depth} {'token is' if depth == 1 else 'tokens are'} proposed a round from now on."

    def run_temp(self, argument: str) -> str:
        if argument:
            self._change("temperature", argument)
        temperature = self._screen.session.options.sampling.temperature
        return f"Temperature {temperature:g} from the next message on." if argument else f"It is {temperature:g}."

    async def run_set(self, argument: str) -> str:
        name, _, text = (part.strip() for part in argument.partition(" "))
        if not name:
            await self._screen.transcript.add_notice("\n".join(map(self._row, SETTABLE)))
            return ""
        if name not in SETTABLE:
            raise CommandError(_not_settable(name))
        if not text:
            value, source = self._value(name)
            return f"{name} is {value} ({source}). {settings.described(name)}"
        self._change(name, text)
        value, _ = self._value(name)
        if text == "default":
            return f"{name} is {value} again{self._when(name)}."
        file = locations.tilde(locations.settings_file())
        kept = settings.line_of(name, text)
        return f"{name} is {value}{self._when(name)}, in this run. To keep it: {kept} in {file}."

    def _row(self, name: str) -> str:
        value, source = self._value(name)
        return f"{name:<16}{one_line(value, 40):<24}{source}".rstrip()

    def _value(self, name: str) -> tuple[str, str]:
        """A setting in words, and where it comes from."""
        session, opened = self._screen.session, self._tuning.opened
        before = opened.settings.speculation
        if name in tuning.SPECULATION:
            now = session.speculation
            shown, same = (
                (now.mode.value, now.mode is before.mode)
                if name == "speculation"
                else (str(now.depth or "auto"), now.depth == before.depth)
            )
            return shown, opened.sources.get(name, "default") if same else "this run"
        if name in tuning.SCREEN:
            shown = self._app.theme if name == "theme" else str(self._app.has_mouse).lower()
            return shown, "this run" if name in self._set_in_app else opened.sources.get(name, "default")
        return self._in_words(name, self._tuning.value(name)), self._tuning.source(name)

    def _in_words(self, name: str, value: object) -> str:
        info = self._screen.session.info
        if value is None:
            found = {"ctx": info.n_ctx, "threads": info.threads} if info else {}
            unset = {"seed": "a fresh one each time", "memory_limit": "what is free"}
            return f"auto ({found[name]:,})" if name in found else unset.get(name, "auto")
        if isinstance(value, bool):
            return str(value).lower()
        if name == "memory_limit" and isinstance(value, int):
            return format_memory(value)
        return f"{value:g}" if isinstance(value, float) else str(value) or "none"

    def _when(self, name: str) -> str:
        if name in tuning.LOADING:
            return " once the models are loaded again (/unload has the next message do that)"
        return " from the next message on" if name in tuning.SAMPLING else ""

    def _change(self, name: str, text: str) -> None:
        """Set one setting to what was typed, or "default": what it was when the chat began. Raises SpecchatError."""
        value = None if text == "default" else settings.value_of(name, text)
        if name in tuning.SCREEN:
            self._use(name, value)
        elif name in tuning.SPECULATION:
            self._speculate(name, text, value)
        else:
            self._tuning = self._tuning.reset(name) if text == "default" else self._tuning.set(name, value)
            self._adopt(name)

    def _use(self, name: str, value: object) -> None:
        """Set one of the screen's own. None: what it was when the chat began."""
        if name == "theme":
            self._app.use_theme(None if value is None else str(value))
        else:
            self._app.grab_mouse(None if value is None else bool(value))
        (self._set_in_app.discard if value is None else self._set_in_app.add)(name)

    def run_mouse(self, argument: str) -> str:
        if argument not in ("on", "off", ""):
            raise CommandError("It is /mouse on or /mouse off.")
        if argument:
            self._use("mouse", argument == "on")
        if self._app.has_mouse:
            return "The mouse is specchat's: it scrolls, clicks and selects. /mouse off leaves it to the terminal."
        return "The mouse is the terminal's, for its own selection of text. /mouse on brings it back."

    def _speculate(self, name: str, text: str, value: object) -> None:
        now, before = self._screen.session.speculation, self._tuning.opened.settings.speculation
        if name == "speculation":
            mode = before.mode if text == "default" else Mode(str(value))
            self._screen.ask_speculation(replace(now, mode=mode))
        else:
            depth = before.depth if text == "default" else value
            self._screen.ask_speculation(replace(now, depth=depth if isinstance(depth, int) else None))

    def _adopt(self, name: str) -> None:
        session = self._screen.session
        session.adopt(self._tuning.launch)
        if name == "system" and not session.messages:
            session.system_prompt = session.launch.system_prompt

    # ---- other models

    def run_model(self, argument: str) -> str:
        if argument:
            self._seek(argument)
        else:
            session, loading = self._screen.session, self._screen.is_loading
            self._screen.app.push_screen(ModelsScreen(session.launch.name, session.info, loading), self._picked)
        return ""

    def _picked(self, name: str | None) -> None:
        if name is not None:
            self._seek(name)

    def _seek(self, typed: str) -> None:
        """Find the models that were named, and a draft for them, and load them. Raises SpecchatError."""
        if self._opener is None:
            raise CommandError("This chat cannot load other models.")
        asked = _DRAFT.search(typed)
        name = typed[: asked.start()] if asked else typed
        if asked and not asked["draft"]:
            raise CommandError(f"It is /model {name} -md auto, or -md with a draft's file.")
        self._sought += 1
        self._screen.note(f"Looking for {one_line(name, 60)}…")
        opener = partial(self._opener, name, Path(asked["draft"]) if asked else None)
        self._screen.run_worker(self._find(opener, typed, self._sought), exit_on_error=False)

    async def _find(self, opener: Callable[[], Launch], typed: str, number: int) -> None:
        dock = self._screen.dock
        try:
            launch = await asyncio.to_thread(opener)
            if number == self._sought:
                dock.hush()
                self._open(launch)
        except SpecchatError as error:
            dock.refuse(f"/model {typed}", as_sentence(error))

    def _open(self, launch: Launch) -> None:
        """Load other models, after asking if a reply is being written. Raises SpecchatError."""
        screen = self._screen
        wanted = self._tuning.of(launch)
        same = (wanted.opened.target, wanted.opened.draft) == (self._tuning.opened.target, self._tuning.opened.draft)
        if same and screen.session.info is not None and not screen.is_loading:
            raise CommandError(f"That is loaded already: {wanted.opened.name}.")
        if not screen.is_replying:
            self._switch(wanted)
            return
        sentence = "A reply is being written. Loading other models stops it; what came so far stays."
        screen.app.push_screen(
            Question(sentence, f"Stop it and load {one_line(wanted.opened.name, 24)}", screen.keymap),
            lambda yes: self._switch(wanted) if yes else None,
        )

    def _switch(self, wanted: Tuning) -> None:
        screen = self._screen
        # A load is cut short: one that is over may not have been noticed yet, and is closed all the same.
        is_cut_short = screen.is_loading or (screen.is_replying and screen.session.info is None)

        async def switch() -> None:
            before = self._tuning.opened  # only now: a switch that is cut short takes itself back first
            self._tuning = self._tuning.of(wanted.opened)
            screen.switch_models(self._tuning.launch, is_cut_short, partial(self._switched, before))

        if screen.is_loading:
            screen.session.close()  # nobody waits for models that are not wanted any more
        screen.when_idle(switch)

    def _switched(self, before: Launch, failed: bool) -> None:
        """The other models are there, or not."""
        if failed:
            self._tuning = self._tuning.of(before)
        self._screen.session.adopt(self._tuning.launch)

    # ---- the model

    def run_think(self, argument: str) -> str:
        session = self._screen.session
        info = session.info
        if info is None or not info.can_toggle_thinking:
            raise CommandError("This model's template has no switch for reasoning.")
        variables = dict(session.options.template_variables)
        if argument in ("on", "off"):
            variables["enable_thinking"] = argument == "on"
            session.options = replace(session.options, template_variables=tuple(variables.items()))
        elif argument:
            raise CommandError("It is /think on or /think off.")
        return f"Reasoning is {'on' if variables.get('enable_thinking', True) else 'off'} from the next message on."

    def run_answer(self, _: str) -> str:
        running, info = self._screen.play.now, self._screen.session.info
        if running is None or not running.is_reply or self._screen.is_elsewhere:
            raise CommandError("No reply is being written.")
        reply = running.reply
        if reply.answer:
            raise CommandError("The model is not thinking now: it is writing its answer.")
        if not reply.reasoning and (info is None or not info.thinks):
            raise CommandError("This model does not think before it answers.")
        self._screen.session.answer_now()
        return "Closing the thinking…" if reply.reasoning else "It answers as soon as it begins to think."

    def run_tokens(self, argument: str) -> str:
        session, figures = self._screen.session, self._screen.figures
        if argument:
            self._screen.run_worker(self._screen.say_count(argument), exit_on_error=False)
            return ""
        size = figures.context_size or (session.info.n_ctx if session.info else 0)
        return f"The conversation takes {figures.context_used:,} of {size:,} tokens."

    async def run_plan(self, _: str) -> str:
        plan = self._screen.session.plan()
        if not plan:
            raise CommandError("Nothing is loaded.")
        now = f"FREE is as it was before the models were loaded; now {format_memory(ram.available().free)} of RAM are."
        await self._screen.transcript.add_notice("\n".join([*plan, "", now]))
        return ""

    def run_unload(self, _: str) -> str:
        if self._screen.is_replying:
            self._screen.say_busy()
            return ""
        if self._screen.session.info is None and not self._screen.is_loading:
            raise CommandError("The models are not loaded.")
        self._screen.session.close()
        self._screen.show_state()
        return "The models are unloaded; the next message loads them again."


def _not_settable(name: str) -> str:
    known = ", ".join(SETTABLE)
    try:
        settings.described(name)
    except SpecchatError as error:
        return as_sentence(f"{error}; there are {known}")
    file = locations.tilde(locations.settings_file())
    return f"{name} is read when specchat starts: set it in {file} (specchat settings --edit). Here: {known}."
