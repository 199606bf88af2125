"""A stream of the session shown as it comes.

Contract: at most one stream runs at a time, in a thread of its own (`tui.stream`); its events are taken about ten
times a second, less often where showing them takes too much of the processor from the engine. The owner is told by
its callbacks, on its own task.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from textual.message_pump import MessagePump

from specchat.session import Attachment, SessionEvent
from specchat.tui.reply import Reply
from specchat.tui.stream import Stream
from specchat.tui.widgets.turns import ReplyTurn, UserTurn

_INTERVAL: Final = 0.1  # seconds between two updates
# Of one core for what the screen does, where every core decodes: the engine's threads wait for each other, so all of
# them lose what one of them is held up. Reading the events takes another 0.025.
_SHARE: Final = 0.06
_LONGEST: Final = 0.6  # seconds between two updates, whatever else (scrolling, say) keeps the screen busy


@dataclass(slots=True)
class Running:
    """A stream under way: the loading of the models if it has no turn, else a reply."""

    stream: Stream[SessionEvent]
    turn: ReplyTurn | None = None
    asked: UserTurn | None = None  # the question, if it was sent with this stream
    text: str = ""  # as it was typed
    attached: tuple[Attachment, ...] = ()  # what the session held for it besides
    reply: Reply = field(default_factory=Reply)

    @property
    def is_reply(self) -> bool:
        """Whether a reply is being written."""
        return self.turn is not None


class Playback:
    """Plays one stream after the other for `owner`, whose timer drives it."""

    def __init__(
        self,
        owner: MessagePump,
        on_events: Callable[[Running], Awaitable[None]],
        on_end: Callable[[Running], Awaitable[None]],
        crowded: Callable[[], bool],
    ) -> None:
        """`crowded`: is there no core that the engine does not decode on?"""
        self._clock = owner.set_interval(_INTERVAL, self._tick, pause=True)
        self._on_events, self._on_end, self._crowded = on_events, on_end, crowded
        self._shown_at, self._spent_at = float("-inf"), 0.0  # wall clock and this thread's processor time
        self._showing = asyncio.Lock()
        self._leaving = False
        self.now: Running | None = None

    def start(self, running: Running) -> None:
        """Play this stream; none other may be running."""
        self.now = running
        self._shown_at, self._spent_at = float("-inf"), 0.0
        self._clock.resume()

    async def _tick(self) -> None:
        running = self.now
        if running is None or self._leaving or self._too_soon():
            return
        self._shown_at, self._spent_at = time.monotonic(), time.thread_time()
        async with self._showing:
            events, ended = running.stream.take()
            for event in events:
                running.reply.add(event)
            if events:
                await self._on_events(running)
            if ended:
                self._clock.pause()
                await self._on_end(running)

    def _too_soon(self) -> bool:
        """Whether the last update, with the layout and painting that followed it, has not been paid off yet."""
        if not self._crowded():
            return False
        spent = time.thread_time() - self._spent_at
        return time.monotonic() - self._shown_at < min(spent / _SHARE, _LONGEST)

    async def wind_down(self) -> None:
        """Show nothing more: widgets mounted while the application closes can upset it."""
        self._leaving = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._showing.acquire(), 1.0)
