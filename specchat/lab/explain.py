"""The theory of speculative decoding with the user's own numbers: measured acceptance, measured costs.

Contract: `measured` yields progress and answers with `Findings`; `sentences` says what they mean, every claim derived
from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from specchat.engine.costs import Costs
from specchat.engine.policy import AdaptivePolicy
from specchat.engine.replies import ReplyOptions
from specchat.engine.stats import ratio
from specchat.lab.prompts import Prompt
from specchat.lab.rig import Rig
from specchat.lab.runs import Run, measure, speculation
from specchat.lab.theory import BETTER, Outlook, outlook, with_better_draft
from specchat.pairs.library import Step

MODE: Final = "draft:4"  # every proposal to that depth is judged, whatever it is worth
NEAR: Final = 1.01  # closer than this two speeds are the same


@dataclass(frozen=True, slots=True)
class Findings:
    """What was measured of one pair on this machine."""

    acceptance: tuple[tuple[str, float], ...]  # for each prompt
    pooled: float
    tested: int  # proposals that `pooled` rests on
    costs: Costs


def measured(rig: Rig, prompts: Sequence[Prompt], options: ReplyOptions, found: list[Findings]) -> Iterator[Step]:
    """Measure, and append the findings to `found`. Raises Cancelled."""
    yield Step("measuring this machine")
    costs = rig.calibrate()
    engine = rig.engine(AdaptivePolicy(speculation(MODE), costs))
    runs: list[Run] = []
    for i, prompt in enumerate(prompts):
        yield Step(f"acceptance on {prompt.name}", i, len(prompts), in_bytes=False)
        runs.append(measure(rig, engine, prompt, MODE, options))
    tested = sum(run.tested for run in runs)
    found.append(
        Findings(
            acceptance=tuple((run.prompt, run.accepted / run.tested) for run in runs if run.tested),
            pooled=ratio(sum(run.accepted for run in runs), tested) or 0.0,
            tested=tested,
            costs=costs,
        )
    )


def sentences(view: Outlook, costs: Costs) -> Iterator[str]:
    """What the figures come to, in plain words."""
    best = view.best
    yield _gain(view)
    yield from _why_not_deeper(view)
    if best.break_even >= 1.0:
        yield f"Break-even: depth {best.depth} would not pay even if every proposal were accepted."
    else:
        yield (
            f"Break-even: depth {best.depth} pays from an acceptance of {best.break_even:.0%} on; "
            f"here it is {view.acceptance:.0%}."
        )
    yield _lever(view, costs)


def _gain(view: Outlook) -> str:
    best = view.best
    if best.speed_up <= NEAR:
        return (
            f"No depth pays: even the best, {best.depth}, keeps {best.expected:.2f} tokens for the time of "
            f"{best.passes:.2f} plain passes, {best.speed_up:.2f} x plain. auto decodes plain here unless text repeats."
        )
    return (
        f"Depth {best.depth} is best: it keeps {best.expected:.2f} tokens for the time of {best.passes:.2f} plain "
        f"passes, {best.speed_up:.2f} x plain."
    )


def _why_not_deeper(view: Outlook) -> Iterator[str]:
    """The next step's gain against its price."""
    best = view.best
    deeper = next((depth for depth in view.depths if depth.depth == best.depth + 1), None)
    if deeper is None:
        return
    more, price = deeper.expected - best.expected, deeper.passes - best.passes
    yield (
        f"Deeper is not better: one more proposal is kept with probability {view.acceptance:.2f}^{deeper.depth} = "
        f"{more:.2f} and costs {price:.2f} passes: {more / price:.2f} tokens a pass, less than the {best.speed_up:.2f} "
        "that the round has without it."
    )


def _lever(view: Outlook, costs: Costs) -> str:
    """A better draft, a cheaper draft or a better depth: which would help most?"""
    now = max(1.0, view.best.speed_up)
    better = max(1.0, with_better_draft(view).best.speed_up)
    cheaper = max(1.0, outlook(view.acceptance, _half_price(costs), len(view.depths)).best.speed_up)
    usual = max(1.0, view.depths[3].speed_up) if len(view.depths) > 3 else now
    what = f"{BETTER:.0%} more of its proposals accepted"
    gains = {
        f"a better draft ({what}: {better:.2f} x plain at its best depth)": better / now,
        f"a draft at half the cost ({cheaper:.2f} x plain)": cheaper / now,
        f"a better depth than the usual 4 ({now:.2f} instead of {usual:.2f} x plain)": now / usual,
    }
    best = max(gains, key=lambda name: gains[name])
    if gains[best] <= NEAR:
        return f"Neither {what} nor half the cost of the draft nor another depth would change much here."
    return f"What helps most here: {best}."


def _half_price(costs: Costs) -> Costs:
    return Costs(costs.target, {width: seconds / 2.0 for width, seconds in costs.draft.items()}, costs.measured)
