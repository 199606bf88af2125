"""What speculative decoding can gain, from an acceptance rate and measured costs. Arithmetic on values.

After Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", section 3: a round of k
proposals, each accepted with probability a, keeps (1 - a^(k+1)) / (1 - a) tokens on average, for the time of the
drafting and of one target pass over k + 1 tokens. Their costs are measured, not assumed to be flat as in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from specchat.engine.costs import CostModel, Costs
from specchat.engine.policy import acceptance_for
from specchat.engine.stats import expected_tokens_per_pass, ratio

DEEPEST: Final = 16
BETTER: Final = 0.05  # what "a better draft" is taken to add to the acceptance


@dataclass(frozen=True, slots=True)
class Depth:
    """A round of `depth` proposals."""

    depth: int
    expected: float  # tokens it keeps
    passes: float  # what it costs, in plain passes
    break_even: float  # acceptance from which it pays

    @property
    def speed_up(self) -> float:
        return self.expected / self.passes


@dataclass(frozen=True, slots=True)
class Outlook:
    """What drafting is worth at one acceptance rate on one machine."""

    acceptance: float
    depths: tuple[Depth, ...]  # 1, 2, ...
    step: float  # what one proposal of the draft costs, in plain passes

    @property
    def ceiling(self) -> float | None:
        """Tokens per pass that no depth exceeds; None where there is no limit."""
        return ratio(1.0, 1.0 - self.acceptance)

    @property
    def best(self) -> Depth:
        return max(self.depths, key=lambda depth: depth.speed_up)


def outlook(acceptance: float, costs: Costs, deepest: int = DEEPEST) -> Outlook:
    """Every depth from 1 to `deepest`, priced with measured costs."""
    model = CostModel(costs)
    plain = float(model.rounds("plain", 0)[0])
    passes = [float(seconds) / plain for seconds in model.rounds("draft", deepest)]
    depths = tuple(
        Depth(k, expected_tokens_per_pass(acceptance, k), passes[k], acceptance_for(passes[k], k))
        for k in range(1, deepest + 1)
    )
    return Outlook(acceptance, depths, model.draft.seconds(1) / plain)


def with_better_draft(given: Outlook, more: float = BETTER) -> Outlook:
    """The same costs, with `more` of the proposals accepted."""
    acceptance = min(1.0, given.acceptance + more)
    depths = tuple(
        Depth(d.depth, expected_tokens_per_pass(acceptance, d.depth), d.passes, d.break_even) for d in given.depths
    )
    return Outlook(acceptance, depths, given.step)
