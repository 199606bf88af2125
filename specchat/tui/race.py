"""A race as the screen knows it: plain on the left, speculation on the right, each written alone on the machine.

Contract: `Race.add` takes the session's events in their order; `view` gives both sides as they are to be shown at a
moment. The side that ran first is shown live, and once more at its recorded pace while the second one runs, so that
both are seen beside each other without a wait. Nothing here reads a clock: whoever asks says what time it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from specchat.engine.policy import Mode, Speculation
from specchat.engine.replies import Finished, Generated, Message
from specchat.engine.text import Piece
from specchat.lab import lanes
from specchat.lab.lanes import Lane
from specchat.session import Session, SessionEvent
from specchat.tui import figures as words
from specchat.tui.reply import Reply
from specchat.tui.text import Cleaner

MOST: Final = 200  # tokens of each reply
PLAIN, OTHER = 0, 1  # the sides, from the left


class Pace(StrEnum):
    """How a side is being shown."""

    WAITING = "waiting"
    READING = "reading"
    LIVE = "live"
    REPLAY = "replay"
    DONE = "done"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Said:
    """The last thing that a race yields: the sentence about the two texts."""

    outcome: str


@dataclass(frozen=True, slots=True)
class View:
    """One side at a moment."""

    lane: Lane
    pace: Pace


class Race:
    """Two replies to the same turns."""

    def __init__(self, turns: tuple[Message, ...], wish: Speculation, plain_first: bool) -> None:
        """`wish` is what plain races against."""
        self.turns, self.wish = turns, wish
        self.lanes: Final = (Lane("plain"), Lane(words.wish(wish)))
        self.replies: Final = (Reply(), Reply())
        self.order: Final = (PLAIN, OTHER) if plain_first else (OTHER, PLAIN)
        self.outcome = ""
        self._cleaners = Cleaner(), Cleaner()
        self._running = self.order[0]
        self._second_ended: float | None = None  # by the caller's clock
        self._over = False

    def run(self, session: Session) -> Iterator[tuple[int, SessionEvent] | Said]:
        """Write both replies, blocking. Raises SpecchatError."""
        modes = [Speculation(Mode.OFF) if side == PLAIN else self.wish for side in self.order]
        tokens: tuple[list[int], list[int]] = ([], [])
        finished = 0
        for turn, event in session.race(self.turns, modes, MOST):
            if isinstance(event, Generated):
                tokens[self.order[turn]].extend(event.round.tokens)
            finished += isinstance(event, Finished) and event.reason != "cancelled"
            yield self.order[turn], event
        if finished == len(modes):
            yield Said(self._compared(session, *tokens))

    def _compared(self, session: Session, plain: list[int], other: list[int]) -> str:
        place, greedy = lanes.difference(plain, other), session.options.sampling.greedy
        margin = session.margin(self.turns, plain[:place]) if greedy and place is not None else 0.0
        return lanes.outcome(greedy, place, margin)

    def add(self, event: tuple[int, SessionEvent] | Said, now: float) -> None:
        """Take in one event, at `now` seconds."""
        if isinstance(event, Said):
            self.outcome = event.outcome
            return
        side, what = event
        self._running = side
        self.replies[side].add(what)
        if isinstance(what, Generated):
            self.lanes[side].add(what.round, self._text(side, what.pieces))
        elif isinstance(what, Finished):
            self.lanes[side].end(self._text(side, what.pieces))
            if side == self.order[1]:
                self._second_ended = now

    def _text(self, side: int, pieces: tuple[Piece, ...]) -> str:
        return self._cleaners[side].add("".join(piece.text for piece in pieces))

    def finish(self) -> None:
        """Show everything that there is from now on."""
        self._over = True

    def view(self, side: int, now: float) -> View:
        """What is to be shown of a side at `now` seconds."""
        lane, first = self.lanes[side], self.order[0]
        if self.is_over(now):
            ended = self.is_whole or self.replies[side].finish not in ("", "cancelled")
            return View(lane, Pace.DONE if ended else Pace.STOPPED)
        if side == first and self._running != first:
            elapsed = self._elapsed(now)
            past = lane.until(elapsed)
            return View(past, Pace.DONE if past.passes == lane.passes else Pace.REPLAY)
        if self.replies[side].finish:
            return View(lane, Pace.DONE)
        if side != self._running:
            return View(lane, Pace.WAITING)
        return View(lane, Pace.LIVE if lane.passes else Pace.READING)

    def _elapsed(self, now: float) -> float:
        """The second side's own clock, which goes on with the caller's once that side is done."""
        ended = self._second_ended
        return self.lanes[self.order[1]].seconds + (0.0 if ended is None else now - ended)

    def is_over(self, now: float) -> bool:
        """Whether there is nothing more to come, of the replay either."""
        ended = self._second_ended is not None
        return self._over or (ended and self._elapsed(now) >= self.lanes[self.order[0]].seconds)

    @property
    def is_whole(self) -> bool:
        """Whether both replies came to their end."""
        return bool(self.outcome)

    @property
    def verdict(self) -> str:
        """Which was faster, once both are written; "" before."""
        plain, other = (lane.rate for lane in self.lanes)
        if not self.is_whole or not plain or not other:
            return ""
        name, ratio = self.lanes[OTHER].mode, other / plain
        times = f"{name} was {words.ratio(ratio)}× as fast as plain. {lanes.unsteady(*self.lanes)}".rstrip()
        latest = self.replies[OTHER].figures
        if latest.proposed == 0 and latest.reason:
            return f"{times} It proposed nothing: {latest.reason}."
        return times
