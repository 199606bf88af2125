"""A race: one reply written plain and then with speculation, each alone on the machine, recorded to be shown together.

Contract: `run` yields once a round, as it happens; prompt reading is off the clock, of the draft too. The lanes
share prompt, seed and limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specchat.engine.costs import Costs
from specchat.engine.decoder import Decoder
from specchat.engine.drafters import all_drafters
from specchat.engine.policy import AdaptivePolicy
from specchat.engine.sampling import SamplingSettings, margin
from specchat.lab import lanes
from specchat.lab.lanes import Lane
from specchat.lab.rig import Rig
from specchat.lab.runs import intact, read, speculation


def run(
    lane: Lane, rig: Rig, policy: AdaptivePolicy, prompt: Sequence[int], sampling: SamplingSettings, n: int
) -> Iterator[Lane]:
    """Write a lane's reply, yielding it after every round. Raises Cancelled."""
    policy.speculation = speculation(lane.mode)
    policy.begin(sampling.temperature, rig.target.rollback_limit, n)
    rig.clear()
    rig.target.decode(prompt[:-1], 0)
    model = rig.target.model
    drafters = all_drafters(rig.draft, model.n_vocab, model.is_eog)
    read(drafters.values(), policy, prompt)
    decoder = Decoder(rig.target, drafters, policy, is_eog=model.is_eog, max_depth=rig.target.rollback_limit)
    for one in decoder.run(prompt, sampling, min(n, rig.target.n_ctx - len(prompt))):
        lane.add(one)
        yield lane
    intact(decoder)


def outcome(rig: Rig, prompt: Sequence[int], plain: Lane, other: Lane, sampling: SamplingSettings) -> str:
    """A sentence about the two texts. Where they differ, how close a call that was is read off the target again."""
    place, apart = lanes.difference(plain.tokens, other.tokens), 0.0
    if sampling.greedy and place is not None:
        before = [*prompt, *plain.tokens[:place]]
        rig.clear()
        rig.target.decode(before[:-1], 0)
        apart = margin(rig.target.decode(before[-1:], 1)[0])
    return lanes.outcome(sampling.greedy, place, apart)


def policy(rig: Rig, costs: Costs, warm_up: Sequence[int], sampling: SamplingSettings) -> AdaptivePolicy:
    """One that knows the pair already, as in a conversation."""
    known = AdaptivePolicy(speculation("auto"), costs)
    for _ in run(Lane("auto"), rig, known, warm_up, sampling, 48):
        pass
    return known
