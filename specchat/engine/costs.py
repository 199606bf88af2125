"""What a round costs: measured at load, refined by every round.

Contract: `CostModel` answers in seconds of wall clock for this machine, these models and the present context length.
Costs are neither linear nor convex in the number of tokens (a pass over 6 can cost more than one over 8), so they are
looked up, never fitted to a formula.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from specchat.engine.rounds import Round

# Widths that are timed at load; between two of them costs are interpolated. 32 proposals are the most that pay.
WIDTHS: Final = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)

# Before anything was measured: a 2-core CPU with a Q8_0 target and a draft of a quarter of its cost, in passes.
ASSUMED_TARGET: Final = {1: 1.0, 2: 1.65, 4: 2.0, 8: 3.0, 16: 5.1, 32: 8.0}
ASSUMED_DRAFT: Final = {1: 0.25, 2: 0.3, 16: 1.0}

MEMORY: Final = 16.0  # rounds over which an observation fades: the context grows by some tens of tokens meanwhile
TRUST: Final = 2.0  # observations at one width before its own figure outweighs the drift of all widths
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
        self._table = dict(sorted(table.items()))
        # Weighted sums of observed / tabulated: of all widths, and of each. A weight fades with every observation.
        self._drift = (1.0, 1.0 if measured else 0.0)  # an assumed table says nothing about absolute speed
        self._own: dict[int, tuple[float, float]] = {}

    def seconds(self, width: int) -> float:
        return self.tabulated(width) * self._correction(width)

    def observed(self, width: int) -> bool:
        """Has a pass of this width been timed in this run, recently enough to count?"""
        return self._own.get(width, (0.0, 0.0))[1] > 0.05

    def record(self, width: int, seconds: float) -> None:
        known = self._drift[1] > 0.0
        limit = OUTLIER * self.seconds(width) if known else seconds
        observed = min(seconds, limit) / self.tabulated(width)
        self._drift = _faded(self._drift, observed)
        fading = 1.0 - 1.0 / (4.0 * MEMORY)  # a width that is not used forgets too, if more slowly
        self._own = {w: (total * fading, weight * fading) for w, (total, weight) in self._own.items()}
        self._own[width] = _faded(self._own.get(width, (0.0, 0.0)), observed)

    def tabulated(self, width: int) -> float:
        """The table's figure: interpolated between two widths, extrapolated from the last two."""
        if (exact := self._table.get(width)) is not None:
            return exact
        widths = list(self._table)
        upper = next((i for i, w in enumerate(widths) if w > width), len(widths) - 1)
        low, high = widths[max(0, upper - 1)], widths[max(upper, min(1, len(widths) - 1))]
        if low == high:
            return self._table[low] * width / low
        slope = (self._table[high] - self._table[low]) / (high - low)
        return self._table[low] + slope * (width - low)

    def _correction(self, width: int) -> float:
        total, weight = self._drift
        drift = total / weight if weight > 0.0 else 1.0
        own, count = self._own.get(width, (0.0, 0.0))
        return (own + TRUST * drift) / (count + TRUST)


class CostModel:
    """What drafting and verifying cost now."""

    def __init__(self, costs: Costs) -> None:
        self._target = PassCosts(costs.target, measured=costs.measured)
        self._draft = PassCosts(costs.draft or ASSUMED_DRAFT, measured=costs.measured)
        self._overhead = (0.0, 0.0)  # weighted sum of seconds per verified row, and the weight

    def round_seconds(self, drafter: str, depth: int, unread: int = 1) -> float:
        """A round with `depth` proposals. Reading what the draft missed is spread over some rounds to come."""
        total, weight = self._overhead
        seconds = self._target.seconds(depth + 1) + (depth + 1) * (total / weight if weight else 0.0)
        if drafter == "draft" and depth > 0:
            step = self._draft.seconds(1)
            catching_up = max(0.0, self._draft.seconds(min(unread, 2)) - step)
            backlog = max(0.0, self.reading_seconds(unread) - self._draft.seconds(min(unread, 2))) / MEMORY
            seconds += depth * step + catching_up + backlog
        return seconds

    def draft_step(self) -> float:
        return self._draft.seconds(1)

    def target_pass(self, width: int) -> float:
        return self._target.seconds(width)

    def reading_seconds(self, tokens: int) -> float:
        """The draft model's pass over `tokens` tokens."""
        return self._draft.seconds(tokens)

    @property
    def plain_seconds(self) -> float | None:
        """Seconds of one plain token at this context length; None until some were measured in this run."""
        return self.round_seconds("plain", 0) if self._target.observed(1) else None

    def record(self, event: Round, unread: int = 1) -> None:
        width = event.proposed + 1
        self._target.record(width, event.target_seconds)
        self._overhead = _faded(
            self._overhead, (event.total_seconds - event.draft_seconds - event.target_seconds) / width
        )
        if event.confidences and unread <= 2:
            # k steps, the first over `unread` tokens; the table's shape divides the time among them.
            step = self._draft.tabulated(1)
            whole = self._draft.tabulated(unread) + (len(event.confidences) - 1) * step
            self._draft.record(1, event.draft_seconds * step / whole)


def _faded(average: tuple[float, float], value: float) -> tuple[float, float]:
    keep = 1.0 - 1.0 / MEMORY
    return average[0] * keep + value, average[1] * keep + 1.0
