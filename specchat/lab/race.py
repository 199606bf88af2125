"""A race: one reply written plain and then with speculation, each alone on the machine, recorded to be shown together.

Contract: `Lane.run` yields once a round, as it happens; prompt reading is off the clock, of the draft too. The lanes
share prompt, seed and limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from specchat.engine.costs import Costs
from specchat.engine.decoder import Decoder
from specchat.engine.drafters import Drafter, ModelDrafter, NgramDrafter
from specchat.engine.policy import AdaptivePolicy
from specchat.engine.sampling import SamplingSettings
from specchat.engine.stats import ratio
from specchat.lab.rig import Rig
from specchat.lab.runs import speculation


@dataclass(frozen=True, slots=True)
class Moment:
    """The end of one round."""

    seconds: float  # on the lane's own clock
    tokens: tuple[int, ...]


class Lane:
    """One side of a race, and its record."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.moments: list[Moment] = []
        self.tested = self.accepted = 0

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(token for moment in self.moments for token in moment.tokens)

    @property
    def seconds(self) -> float:
        return self.moments[-1].seconds if self.moments else 0.0

    @property
    def passes(self) -> int:
        return len(self.moments)

    @property
    def rate(self) -> float | None:
        return ratio(len(self.tokens), self.seconds)

    def until(self, seconds: float) -> Lane:
        """The lane as it was then: what a replay shows."""
        past = Lane(self.mode)
        past.moments = [moment for moment in self.moments if moment.seconds <= seconds]
        return past

    def run(
        self, rig: Rig, policy: AdaptivePolicy, prompt: Sequence[int], sampling: SamplingSettings, n: int
    ) -> Iterator[Lane]:
        """Write the reply, yielding itself after every round. Raises Cancelled."""
        policy.speculation = speculation(self.mode)
        rig.clear()
        rig.target.decode(prompt[:-1], 0)
        model = rig.target.model
        drafters: dict[str, Drafter] = {"ngram": NgramDrafter()}
        if rig.draft is not None:
            drafters["draft"] = ModelDrafter(rig.draft, model.n_vocab)
            if policy.wants("draft"):
                for _ in drafters["draft"].read(prompt):
                    pass
        decoder = Decoder(rig.target, drafters, policy, is_eog=model.is_eog, max_depth=rig.target.rollback_limit)
        for one in decoder.run(prompt, sampling, min(n, rig.target.n_ctx - len(prompt))):
            # Rounds only: whoever shows them takes time in between.
            self.moments.append(Moment(self.seconds + one.total_seconds, one.tokens))
            self.tested += one.tested
            self.accepted += one.accepted
            yield self


def outcome(rig: Rig, prompt: Sequence[int], plain: Lane, other: Lane, sampling: SamplingSettings) -> str:
    """A sentence about the two texts. Where they differ, how close a call that was is read off the target again."""
    if not sampling.greedy:
        return "At this temperature the texts differ by chance; their distribution is the same."
    pairs = zip(plain.tokens, other.tokens, strict=False)
    place = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if place is None:
        return "The texts are identical."
    before = [*prompt, *plain.tokens[:place]]
    rig.clear()
    rig.target.decode(before[:-1], 0)
    second, first = np.partition(rig.target.decode(before[-1:], 1)[0], -2)[-2:]
    return (
        f"The texts differ from token {place + 1} on, where plain's two likeliest logits are {first - second:.2g} "
        "apart: `specchat verify` tells what width noise explains."
    )


def policy(rig: Rig, costs: Costs, warm_up: Sequence[int], sampling: SamplingSettings) -> AdaptivePolicy:
    """One that knows the pair already, as in a conversation."""
    known = AdaptivePolicy(speculation("auto"), costs)
    for _ in Lane("auto").run(rig, known, warm_up, sampling, 48):
        pass
    return known
