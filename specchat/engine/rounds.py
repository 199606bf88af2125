"""What one round of speculative decoding did: the value that the decoder yields and everyone else reads."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Origin(StrEnum):
    """Where a kept token came from."""

    ACCEPTED = "accepted"  # proposed by a drafter, accepted by the target
    CORRECTED = "corrected"  # drawn from the residual after the first rejection
    BONUS = "bonus"  # one more from the target after every proposal was accepted
    PLAIN = "plain"  # the target alone, no proposals in this round


@dataclass(frozen=True, slots=True)
class Round:
    """One draft-verify-accept cycle, which is one target pass. Times are seconds of wall clock."""

    tokens: tuple[int, ...]  # kept by this round, in order
    origins: tuple[Origin, ...]  # one for each kept token
    drafter: str  # "plain", "draft" or "ngram"
    proposed: int  # tokens the target was given to verify
    tested: int  # proposals judged: up to and including the first rejection
    accepted: int
    draft_seconds: float
    target_seconds: float
    total_seconds: float  # the whole round, with sampling and roll-back
    context_used: int  # tokens of the conversation after this round, the last one included
    confidences: tuple[float, ...] = ()  # the draft's own, for each step it made: one more than proposed if it stopped
    declined: float | None = None  # what the acceptance of the step that it stopped at would have been
    reason: str = ""  # why this drafter and depth, from the policy
    finish: str = ""  # "" while it goes on; else "end" (of generation), "length" or "context"
