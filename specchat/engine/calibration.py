"""Time what a pass costs on this machine, before the first reply.

Contract: both caches are empty before and after. A fraction of a second with a small model; within `budget` seconds
with any, the widths that did not fit then following the usual shape.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from specchat.engine.cache import Cache
from specchat.engine.costs import ASSUMED_DRAFT, ASSUMED_TARGET, WIDTHS, Costs

BUDGET: Final = 2.0  # seconds: what a person hardly notices behind seconds of loading
DRAFT_WIDTHS: Final = (1, 2, 64)  # a step, one after a round that was accepted whole, and a batch of what it missed
REPEATS: Final = 3  # the quickest of them counts: whatever disturbs a pass makes it longer
# The most telling first, as a large model will not get through them all.
_ORDER: Final = sorted(WIDTHS, key=lambda width: (1, 2, 4, 8, 16).index(width) if width in (1, 2, 4, 8, 16) else 9)


def calibrate(
    target: Cache, draft: Cache | None, budget: float = BUDGET, clock: Callable[[], float] = time.perf_counter
) -> Costs:
    """Seconds of a target pass for each of WIDTHS, and of a draft step. Raises what the caches raise."""
    share = budget if draft is None else 0.7 * budget
    return Costs(
        target=_timed(target, _ORDER, ASSUMED_TARGET, share, clock),
        draft=_timed(draft, DRAFT_WIDTHS, ASSUMED_DRAFT, budget - share, clock, rows=1) if draft is not None else {},
        measured=True,
    )


def calibrate_draft(
    draft: Cache, budget: float = BUDGET, clock: Callable[[], float] = time.perf_counter
) -> dict[int, float]:
    """Seconds of a draft step alone, where the target's costs are known."""
    return _timed(draft, DRAFT_WIDTHS, ASSUMED_DRAFT, 0.3 * budget, clock, rows=1)


def _timed(
    cache: Cache,
    order: Sequence[int],
    shape: dict[int, float],
    budget: float,
    clock: Callable[[], float],
    rows: int | None = None,
) -> dict[int, float]:
    """The quickest pass of each width; `rows` of logits are asked of each, or one for every token as in verifying."""

    def once(width: int) -> float:
        started = clock()
        cache.decode([0] * width, rows or width)
        seconds = clock() - started
        cache.rollback(0)
        return seconds

    end = clock() + budget
    once(1)  # the first pass reads the weights from disk and fills the processor's caches
    best: dict[int, float] = {}
    for _ in range(REPEATS):
        for width in (width for width in order if width <= cache.n_ctx):
            if best and clock() >= end:
                break
            best[width] = min(once(width), best.get(width, float("inf")))
    return best | {width: _guess(width, best, shape) for width in order if width not in best}


def _guess(width: int, known: dict[int, float], shape: dict[int, float]) -> float:
    """A width that was not timed: from the nearest narrower one that was, by the assumed shape."""
    nearest = max(w for w in known if w <= width)
    return known[nearest] * _interpolated(width, shape) / _interpolated(nearest, shape)


def _interpolated(width: int, shape: dict[int, float]) -> float:
    lower = max(w for w in shape if w <= width)
    upper = min((w for w in shape if w >= width), default=lower)
    share = 0.0 if upper == lower else (width - lower) / (upper - lower)
    return shape[lower] + share * (shape[upper] - shape[lower])
