"""What a round costs: measured at load, refined by every round.

Contract: `CostModel` answers in seconds of wall clock for this machine, these models and the present context length.
Costs are neither linear nor convex in the number of tokens (a pass over 6 can cost more than one over 8), so they are
looked up, never fitted to a formula.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from specchat.engine.rounds import Round

# Widths that are timed at load; between two of them costs are interpolated. 32 proposals are the most that pay.
WIDTHS: Final = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)

# Before anything was measured: a 2-core CPU with a Q8_0 target and a draft of a quarter of its cost, in passes.
ASSUMED_TARGET: Final = {1: 1.0, 2: 1.65, 4: 2.0, 8: 3.0, 16: 5.1, 32: 8.0}
ASSUMED_DRAFT: Final = {1: 0.25, 2: 0.3, 64: 3.4}

WIDEST: Final = 33  # tokens of the widest pass that is priced: 32 proposals and the token before them
_COUNT: Final = np.arange(WIDEST + 1, dtype=np.float64)

MEMORY: Final = 16.0  # rounds over which an observation fades: the context grows by some tens of tokens meanwhile
FADING: Final = 1.0 - 1.0 / (4.0 * MEMORY)
TRUST: Final = 2.0  # observations at one width before its own figure outweighs the drift of all widths
HORIZON: Final = 256.0  # tokens over which reading what an idle draft missed is written off: a long reply, or a few
BUMP: Final = (
    1.25  # the most that a pass may cost over a wider one; 1.14 was measured (a 1.5B Q4_K_M, 12 and 16 tokens)
)
CRAWLED: Final = 0.3  # of the time that was measured: a pass that takes so little shows the measurement to be wrong
OUTLIER: Final = 2.0  # a pass that took this many times the expected was interrupted: it counts as this much


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of one pass for each width that was timed; `draft` is empty without a draft model."""

    target: Mapping[int, float] = field(default_factory=lambda: dict(ASSUMED_TARGET))
    draft: Mapping[int, float] = field(default_factory=lambda: dict(ASSUMED_DRAFT))
    measured: bool = False


class PassCosts:
    """One model's seconds per pass over n tokens: a table, corrected by what passes really take."""

    def __init__(self, table: Mapping[int, float], *, measured: bool) -> None:
        self._table = _filled(table)  # [n] = seconds of n tokens; [0] is 0
        # Weighted sums of observed / tabulated: of all widths, and of each. A weight fades with every observation.
        self._drift = (1.0, 1.0 if measured else 0.0)  # an assumed table says nothing about absolute speed
        self._own: dict[int, _Faded] = {}
        self._passes = 0
        self.believed = True  # until passes show that what was measured cannot be
        self._curve: NDArray[np.float64] | None = self._table  # None: to be computed when it is next asked for

    @property
    def curve(self) -> NDArray[np.float64]:
        """Seconds of a pass over n tokens, for n = 0 .. WIDEST."""
        if self._curve is None:
            self._curve = self._table * self._scale()
            for width in self._own:
                self._curve[width] = self.seconds(width)
        return self._curve

    def seconds(self, width: int) -> float:
        """Of one pass; beyond WIDEST as the last widths go on."""
        if width <= WIDEST:
            total, weight = self._own[width].at(self._passes) if width in self._own else (0.0, 0.0)
            return float(self._table[width]) * (total + TRUST * self._scale()) / (weight + TRUST)
        slope = (self.seconds(WIDEST) - self.seconds(WIDEST // 2)) / (WIDEST - WIDEST // 2)
        return self.seconds(WIDEST) + slope * (width - WIDEST)

    def record(self, width: int, seconds: float) -> None:
        if not 1 <= width <= WIDEST:
            return
        if self._drift[1] > 0.0 and seconds < CRAWLED * self.seconds(width):
            self._start_over(width, seconds)
        limit = OUTLIER * self.seconds(width) if self._drift[1] > 0.0 else seconds
        observed = min(seconds, limit) / float(self._table[width])
        self._drift = _faded(self._drift, observed)
        self._passes += 1
        sums = self._own[width].at(self._passes) if width in self._own else (0.0, 0.0)
        self._own[width] = _Faded(_faded(sums, observed), self._passes)
        self._curve = None

    def _start_over(self, width: int, seconds: float) -> None:
        """Other work can make a pass longer, not shorter: it held the measurement up, and every width differently.

        Then only what was seen since counts, in the usual proportions.
        """
        usual = _filled(ASSUMED_TARGET)
        self._table = usual * (seconds / float(usual[width]))
        self._drift, self._own, self._curve = (1.0, 1.0), {}, None
        self.believed = False

    def _scale(self) -> float:
        """How all widths differ from the table."""
        total, weight = self._drift
        return total / weight if weight > 0.0 else 1.0


@dataclass(frozen=True, slots=True)
class _Faded:
    """(weighted sum, weight) of what was observed, as it stood after so many passes."""

    sums: tuple[float, float]
    passes: int

    def at(self, passes: int) -> tuple[float, float]:
        """A width that is not used forgets too, if more slowly."""
        keep = FADING ** (passes - self.passes)
        return self.sums[0] * keep, self.sums[1] * keep


class CostModel:
    """What drafting and verifying cost now, in seconds."""

    def __init__(self, costs: Costs) -> None:
        self.at_load = costs
        self.target = PassCosts(costs.target, measured=costs.measured)
        self.draft = PassCosts(costs.draft or ASSUMED_DRAFT, measured=costs.measured)
        # Weighted sums, and weights: of our own seconds for each verified row, and of what a plain token really took.
        self._overhead = self._plain = (0.0, 0.0)

    def rounds(self, drafter: str, deepest: int, unread: int = 1) -> NDArray[np.float64]:
        """A round with k proposals, for k = 0 .. deepest: the target's pass, the draft's steps, and our own work.

        After a round that was accepted whole the draft has two tokens to read; more is a `backlog`.
        """
        seconds = self.target.curve[1 : deepest + 2] + _COUNT[1 : deepest + 2] * self._row_seconds()
        if drafter == "draft":
            first = self.draft.seconds(min(unread, 2))
            seconds[1:] += _COUNT[:deepest] * self.draft.seconds(1) + first
        return seconds

    def backlog(self, unread: int, horizon: float) -> float:
        """What reading that an idle draft missed comes to for each of the next `horizon` tokens that it helps to write.

        While it reads, for about as long as the target's passes take, tokens come plain.
        """
        reading = max(0.0, self.draft.seconds(max(unread, 2)) - self.draft.seconds(2))
        return reading / max(1.0, horizon - reading / self.plain_round())

    @property
    def believed(self) -> bool:
        """Is what was measured at load worth keeping?"""
        return self.target.believed and self.draft.believed

    def plain_round(self) -> float:
        """A round without proposals: `rounds` at k = 0, without computing the others."""
        return self.target.seconds(1) + self._row_seconds()

    def _row_seconds(self) -> float:
        """Our own work for each verified row."""
        total, weight = self._overhead
        return total / weight if weight else 0.0

    @property
    def plain_seconds(self) -> float | None:
        """Seconds of one plain token, as measured in this run not many rounds ago; None where it was not."""
        total, weight = self._plain
        return total / weight if weight > 0.05 else None

    def record(self, event: Round, unread: int = 1) -> None:
        width = event.proposed + 1
        self.target.record(width, event.target_seconds)
        own = event.total_seconds - event.draft_seconds - event.target_seconds
        self._overhead = _faded(self._overhead, own / width)
        if width == 1 and not event.confidences:
            # A draft that was judged before this round is no part of what plain costs.
            self._plain = _faded(self._plain, event.total_seconds - event.draft_seconds)
        else:
            self._plain = self._plain[0] * FADING, self._plain[1] * FADING
        if event.confidences and unread <= 2:
            # k steps, the first over `unread` tokens; what is known of their proportions divides the time among them.
            step = self.draft.seconds(1)
            whole = self.draft.seconds(unread) + (len(event.confidences) - 1) * step
            self.draft.record(1, event.draft_seconds * step / whole)


def _filled(table: Mapping[int, float]) -> NDArray[np.float64]:
    """The table with every width from 0 to WIDEST: interpolated, and extrapolated from the last two."""
    widths = sorted(table)
    values = [table[width] for width in widths]
    # A pass that cost far more than a wider one was interrupted while it was timed. (Some do cost a little more.)
    for i in range(len(values) - 2, -1, -1):
        values[i] = min(values[i], BUMP * min(values[i + 1 :]))
    if widths[-1] < WIDEST:
        slope = (values[-1] - values[-2]) / (widths[-1] - widths[-2]) if len(widths) > 1 else values[-1] / widths[-1]
        values.append(values[-1] + slope * (WIDEST - widths[-1]))
        widths.append(WIDEST)
    return np.interp(_COUNT, [0, *widths], [0.0, *values])


def _faded(average: tuple[float, float], value: float) -> tuple[float, float]:
    keep = 1.0 - 1.0 / MEMORY
    return average[0] * keep + value, average[1] * keep + 1.0
