"""A race: two columns, plain on the left and speculation on the right.

Contract: the race runs in a thread of its own from the moment the screen is shown, and the screen stays until that
thread has ended, so that whoever gets its answer may use the session again. It answers with the race if its results
are to be kept, else with None.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from specchat.session import Session, SessionEvent
from specchat.tui import figures as words
from specchat.tui.actions import Place, bindings, key_name, key_of
from specchat.tui.fit import Segment
from specchat.tui.race import Pace, Race, Said, View
from specchat.tui.reply import Reply
from specchat.tui.stopping import Stopping
from specchat.tui.stream import Stream
from specchat.tui.text import as_sentence, clean, one_line
from specchat.tui.widgets.hints import Hints
from specchat.tui.widgets.status import StatusLine

_REDRAW: Final = 0.1  # seconds, as for any reply
_DIM: Final = "$foreground 60%"
_PACES: Final = {
    Pace.WAITING: "its turn comes",
    Pace.READING: "",
    Pace.LIVE: "live",
    Pace.REPLAY: "at its recorded pace",
    Pace.DONE: "done",
    Pace.STOPPED: "stopped",
}


class Side(Vertical):
    """One reply with its figures."""

    def __init__(self, name: str) -> None:
        super().__init__(classes="side")
        self.border_title = Content(name)
        self._text: Final = Static(markup=False)
        self._clock: Final = StatusLine()
        self._counts: Final = StatusLine()
        self._shown = ""

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield self._text
        yield self._clock
        yield self._counts

    def show(self, view: View, reply: Reply) -> None:
        """Bring it up to date."""
        self.border_subtitle = Content(_PACES[view.pace])
        self.set_class(view.pace in (Pace.LIVE, Pace.READING), "-live")
        text = view.lane.text.strip()
        if text != self._shown:
            self._shown = text
            self._text.update(text)
            self.query_one(VerticalScroll).anchor()
        if view.pace is Pace.READING and reply.progress is not None:
            self._clock.show(words.progress(reply.progress))
            return
        self._clock.show(_clock(view))
        self._counts.show(_counts(view))


def _clock(view: View) -> list[Segment]:
    if not view.lane.passes:
        return []
    return [
        Segment(Content.styled(f"{view.lane.seconds:.1f} s", "$foreground bold"), 0),
        Segment(Content.assemble((words.speed(view.lane.rate), "$foreground bold"), (" tok/s", _DIM)), 1),
    ]


def _counts(view: View) -> list[Segment]:
    lane = view.lane
    if not lane.passes:
        return []
    passes = "pass" if lane.passes == 1 else "passes"
    tokens = "token" if len(lane.tokens) == 1 else "tokens"
    parts = [
        Segment(
            Content.styled(f"{lane.passes:,} target {passes}", _DIM),
            rank=0,
            short=Content.styled(f"{lane.passes:,} {passes}", _DIM),
        ),
        Segment(Content.styled(f"{len(lane.tokens):,} {tokens}", _DIM), 1),
    ]
    if lane.tested:
        share = words.percent(lane.accepted / lane.tested)
        parts.append(Segment(Content.styled(f"{share} accepted", _DIM), 2, Content.styled(f"{share} acc.", _DIM)))
    return parts


class RaceScreen(ModalScreen[Race | None]):
    """See the module."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.RACE)]

    def __init__(self, session: Session, make: Callable[[], Race], keymap: dict[str, str]) -> None:
        """`make` makes the next race: another one each time it is called."""
        super().__init__()
        self._session, self._make, self._keymap = session, make, keymap
        self._race = make()
        self._stream: Stream[tuple[int, SessionEvent] | Said] | None = None
        self._wrong = ""  # what ended it too soon
        self._stopping: Final = Stopping(session, self, self._show)

    def compose(self) -> ComposeResult:
        yield Static(id="race-title", markup=False)
        with Horizontal():
            for lane in self._race.lanes:
                yield Side(lane.mode)
        yield Static(id="race-outcome", markup=False)
        yield Hints(id="race-hints")

    def on_mount(self) -> None:
        self.query_one("#race-title", Static).update(one_line(self._race.turns[-1].content))
        self._begin()
        self.set_interval(_REDRAW, self._tick)

    def _begin(self) -> None:
        self._wrong = ""
        self._stream = Stream(self._race.run(self._session), "race")
        self._show()

    def _tick(self) -> None:
        if self._stream is not None:
            events, ended = self._stream.take()
            for event in events:
                self._race.add(event, time.monotonic())
            if ended:
                self._ended(self._stream.error)
        self._show()

    def _ended(self, error: Exception | None) -> None:
        self._stream = None
        self._stopping.over()
        if not self._race.is_whole:
            self._race.finish()
            self._wrong = as_sentence(error) if error else "Stopped: there is nothing to compare."

    def _show(self) -> None:
        now = time.monotonic()
        for place, side in enumerate(self.query(Side)):
            side.show(self._race.view(place, now), self._race.replies[place])
        self.query_one("#race-outcome", Static).update(self._outcome(now))
        labels = {"stop_race": "End the engine" if self._stopping.is_deaf else "Stop"}
        if self._stream is None:
            labels = {"stop_race": "Close" if self._race.is_over(now) else "To its end", "race_again": ""}
            labels |= {"keep_race": ""} if self._race.is_whole else {}
        self.query_one(Hints).show_actions(labels, self._keymap)

    def _outcome(self, now: float) -> Content:
        race = self._race
        if self._wrong:
            return Content.styled(clean(self._wrong), "$text-warning")
        if self._stopping.is_deaf:
            again = key_name(key_of("stop_race", self._keymap))
            return Content.styled(f"The engine does not answer: {again} again ends it.", "$text-warning")
        if not race.is_whole or not race.is_over(now):
            first, second = (race.lanes[side].mode for side in race.order)
            return Content.styled(f"{first} runs alone, then {second} alone while the first is shown again.", _DIM)
        notices = [as_sentence(one_line(notice)) for reply in race.replies for notice in reply.notices]
        return Content("\n").join(
            [
                Content.styled(clean(race.verdict), "bold"),
                Content(race.outcome),
                *(Content.styled(notice, _DIM) for notice in dict.fromkeys(notices)),
            ]
        )

    # ---- keys

    def action_stop_race(self) -> None:
        if self._stream is not None:
            self._stopping.press()
        elif not self._race.is_over(time.monotonic()):
            self._race.finish()
        else:
            self.dismiss(None)

    def action_race_again(self) -> None:
        if self._stream is None:
            self._race = self._make()
            self._begin()

    def action_keep_race(self) -> None:
        if self._stream is None and self._race.is_whole:
            self.dismiss(self._race)

    async def action_run_hint(self, name: str) -> None:
        """A hint was clicked."""
        await self.run_action(name)
