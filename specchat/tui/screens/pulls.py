"""`/pull`: pairs are fetched beside the chat.

Contract: one pull at a time, in a process of low priority. While it runs nothing is learned from what the engine's
passes take. Its end is only said; stopping it keeps what came.
"""

from __future__ import annotations

import asyncio
from typing import Final

from textual.timer import Timer

from specchat.errors import SpecchatError
from specchat.pairs import catalog
from specchat.pairs.background import BackgroundPull
from specchat.pairs.progress import Event, Overview
from specchat.tui.screens.pairs import PairsScreen
from specchat.tui.screens.turns import TurnActions
from specchat.tui.stream import Stream
from specchat.tui.text import as_sentence
from specchat.tui.widgets.downloads import Downloads

_REDRAW: Final = 0.25  # seconds: what comes is counted in megabytes
_TOLD: Final = 20.0  # seconds for which the end is on the screen
STOP: Final = "stop"


class Pull:
    """One pull under way."""

    def __init__(self, name: str) -> None:
        """Begins it. Raises SpecchatError where no pair has that name."""
        self.pair: Final = catalog.load().pair(name)
        self.overview: Final = Overview()
        self._process: Final = BackgroundPull([self.pair.name])
        self.stream: Final[Stream[Event]] = Stream(self._process.events(), "pull")
        self.is_stopped = False

    async def stop(self) -> None:
        """End it within a second; what came stays."""
        self.is_stopped = True
        await asyncio.to_thread(self._process.cancel)


class Pulls(TurnActions):
    """The part of the chat screen that fetches."""

    pull: Pull | None = None
    _pull_clock: Timer | None = None

    async def fetch(self, name: str) -> str:
        """What `/pull` does: choose a pair, fetch one, or stop. Raises SpecchatError."""
        if name == STOP:
            return await self.stop_pull()
        if self.pull is not None:
            raise SpecchatError(f"{self.pull.pair.name} is being fetched: /pull stop ends that, what came stays.")
        if not name:
            self.app.push_screen(PairsScreen(), self._pair_chosen)
            return ""
        return self._begin_pull(name)

    def _pair_chosen(self, name: str | None) -> None:
        if name is not None and self.pull is None:
            try:
                self.note(self._begin_pull(name))
            except SpecchatError as error:
                self.note(as_sentence(error), "error")

    def _begin_pull(self, name: str) -> str:
        self.pull = Pull(name)
        self.session.set_disturbed(True)
        self.query_one(Downloads).show(name, self.pull.overview)
        self._pull_clock = self.set_interval(_REDRAW, self._show_pull)
        return self.pull.pair.licence_notice

    def _show_pull(self) -> None:
        pull = self.pull
        if pull is None:
            return
        events, ended = pull.stream.take()
        for event in events:
            pull.overview.seen(event)
        if ended:
            self._end_pull(pull)
        else:
            self.query_one(Downloads).show(pull.pair.name, pull.overview)

    def _end_pull(self, pull: Pull) -> None:
        self.pull = None
        if self._pull_clock is not None:
            self._pull_clock.stop()
        self.session.set_disturbed(False)
        downloads = self.query_one(Downloads)
        if pull.is_stopped:
            downloads.hide()
            return
        name, error = pull.pair.name, pull.stream.error
        if error is None:
            downloads.tell(f"{name} is ready: /model {name} loads it.", "$text-success")
        else:
            downloads.tell(as_sentence(error), "$text-error")
        self.set_timer(_TOLD, self._forget_end)

    def _forget_end(self) -> None:
        if self.pull is None:
            self.query_one(Downloads).hide()

    async def stop_pull(self) -> str:
        """End what is being fetched. Raises SpecchatError where nothing is."""
        pull = self.pull
        if pull is None:
            raise SpecchatError("Nothing is being fetched.")
        await pull.stop()
        self._end_pull(pull)
        return f"Stopped. What came of {pull.pair.name} stays: /pull {pull.pair.name} goes on from there."
