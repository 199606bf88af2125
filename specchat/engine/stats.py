"""The figures that the screen shows, computed from rounds alone.

Contract: `Stats.add(round)` then `Stats.figures` gives an immutable `Figures`; recomputing from the same rounds
gives the same figures. All speeds are tokens per second of wall clock after the first token.
"""

from __future__ import annotations

from dataclasses import dataclass


def expected_tokens_per_pass(acceptance: float, depth: int) -> float:
    """(1 - a^(k+1)) / (1 - a): tokens one pass keeps on average when each proposal is accepted with probability a.

    Leviathan et al. 2023, equation 1; k + 1 at a = 1.
    """
    if acceptance >= 1.0:
        return depth + 1.0
    return float((1.0 - acceptance ** (depth + 1)) / (1.0 - acceptance))


@dataclass(frozen=True, slots=True)
class Figures:
    """A reply's figures so far. None where nothing was measured yet (the screen shows a dash)."""

    drafter: str = "plain"  # of the latest round
    reason: str = ""  # why that one
    tokens: int = 0  # kept in this reply
    passes: int = 0
    proposed: int = 0
    tested: int = 0
    accepted: int = 0
    depth: int = 0  # proposed in the latest round
    seconds: float = 0.0  # of decoding, prompt reading excluded
    tokens_per_second: float | None = None  # average over the reply
    tokens_per_second_now: float | None = None  # over about the last two seconds
    acceptance: float | None = None  # accepted / tested
    tokens_per_pass: float | None = None
    expected_per_pass: float | None = None  # theory at this acceptance and mean depth of drafting rounds
    ceiling: float | None = None  # 1 / (1 - a)
    plain_tokens_per_second: float | None = None  # measured in this run near this context length
    speed_up: float | None = None  # now over plain
    time_to_first_token: float | None = None  # from the request, prompt reading included
    prompt_tokens: int = 0
    prompt_reused: int = 0
    prompt_tokens_per_second: float | None = None
    context_used: int = 0
    context_size: int = 0
