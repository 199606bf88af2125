"""The figures that the screen shows, computed from rounds alone.

Contract: `Stats.add(round)` returns an immutable `Figures`; the same rounds give the same figures, whoever adds them.
All speeds are tokens per second of wall clock. What is called "now" is over the rounds of about the last
RECENT_SECONDS, one window for all such figures; the others are over the whole reply.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from specchat.engine.rounds import Round

# Tokens of a reply that say something of its speed beside plain's. A pass keeps between 1 and k + 1 of them: at a usual
# acceptance (0.7 of 4) their spread is 0.56 of the mean, of which 20 tokens, about 7 passes, leave 0.2. A reply of 4
# tokens from one lucky pass is "3.9 times plain".
FEWEST_COMPARED: Final = 20
# Proposals tested a pass, below which the speed says nothing of speculation: at most this share more tokens come of
# them, while plain's own speed swings by more between one moment and another. An almost wholly plain reply, 1.00 tokens
# a pass, was "1.36 times plain".
LEAST_TESTED: Final = 0.1
RECENT_SECONDS: Final = 2.0  # what "now" means: long enough to be readable, short enough to feel a switch


def expected_tokens_per_pass(acceptance: float, depth: float) -> float:
    """(1 - a^(k+1)) / (1 - a): tokens one pass keeps on average when each proposal is accepted with probability a.

    Leviathan et al. 2023, equation 1; k + 1 at a = 1.
    """
    if acceptance >= 1.0:
        return depth + 1.0
    return float((1.0 - acceptance ** (depth + 1)) / (1.0 - acceptance))


@dataclass(frozen=True, slots=True)
class Figures:
    """A reply's figures so far. None where nothing was measured yet (the screen shows a dash)."""

    drafter: str = "plain"  # of the latest round in which there was a choice
    reason: str = ""  # why that one
    tokens: int = 0  # kept in this reply
    passes: int = 0
    proposed: int = 0
    tested: int = 0
    accepted: int = 0
    depth: int = 0  # proposed in that round
    seconds: float = 0.0  # of decoding, prompt reading excluded
    tokens_per_second: float | None = None  # average over the reply
    tokens_per_second_now: float | None = None  # over about the last two seconds
    acceptance: float | None = None  # accepted / tested
    acceptance_now: float | None = None  # over the same window as the speed
    tokens_per_pass: float | None = None
    tokens_per_pass_now: float | None = None
    expected_per_pass: float | None = None  # theory at this acceptance, over the depths that were proposed
    ceiling: float | None = None  # 1 / (1 - a); None also at a = 1
    plain_tokens_per_second: float | None = None  # measured in this run near this context length
    # Now over plain; None while (almost) nothing is proposed, as plain over itself is only noise, or of too few tokens.
    speed_up: float | None = None
    time_to_first_token: float | None = None  # from the request, prompt reading included
    prompt_tokens: int = 0
    prompt_reused: int = 0
    prompt_tokens_per_second: float | None = None
    context_used: int = 0
    context_size: int = 0

    @property
    def average_speed_up(self) -> float | None:
        """The whole reply's speed over plain's; None of one that was (almost) all plain, or too short to say."""
        plain, average = self.plain_tokens_per_second, self.tokens_per_second
        says = self.is_compared and self.tokens >= FEWEST_COMPARED and self.tested >= LEAST_TESTED * self.passes
        return possible(average / plain, self.tokens_per_pass) if plain and average and says else None

    @property
    def is_compared(self) -> bool:
        """Whether there is a plain speed to hold it against, and anything but plain to be held."""
        return bool(self.plain_tokens_per_second and self.proposed)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is known once the prompt was read. Seconds are of wall clock since the request."""

    tokens: int
    reused: int
    seconds: float  # spent reading the tokens that were not in the cache
    context_size: int


class Stats:
    """Adds up one reply's rounds."""

    def __init__(self, prompt: Prompt) -> None:
        self._prompt = prompt
        self._recent: deque[Round] = deque()  # the rounds that "now" is over
        self._telling: Round | None = None  # the latest that tells how this reply is written, and why
        self._first_token: float | None = None
        self._tokens = self._passes = self._proposed = self._tested = self._accepted = 0
        self._seconds = self._recent_seconds = 0.0
        self._recent_tokens = self._recent_tested = self._recent_accepted = 0
        self._depths: dict[int, int] = {}  # proposals in a round -> rounds

    def add(self, event: Round, plain_seconds: float | None = None) -> Figures:
        """The figures after `event`; `plain_seconds` is what one plain token costs at this context length."""
        self._tokens += len(event.tokens)
        self._passes += 1
        self._proposed += event.proposed
        self._tested += event.tested
        self._accepted += event.accepted
        self._seconds += event.total_seconds
        self._depths[event.proposed] = self._depths.get(event.proposed, 0) + 1
        if self._first_token is None:
            self._first_token = self._prompt.seconds + event.total_seconds
        self._remember(event)
        if self._telling is None or not _is_forced(event):
            self._telling = event
        return self._figures(event, self._telling, plain_seconds)

    def _remember(self, event: Round) -> None:
        self._recent.append(event)
        self._count_recent(event, 1)
        while len(self._recent) > 1 and self._recent_seconds - self._recent[0].total_seconds >= RECENT_SECONDS:
            self._count_recent(self._recent.popleft(), -1)

    def _count_recent(self, event: Round, sign: int) -> None:
        # Running sums: adding up a hundred rounds at each is felt by a fast model.
        self._recent_tokens += sign * len(event.tokens)
        self._recent_tested += sign * event.tested
        self._recent_accepted += sign * event.accepted
        self._recent_seconds += sign * event.total_seconds

    def _figures(self, event: Round, telling: Round, plain_seconds: float | None) -> Figures:
        now = ratio(self._recent_tokens, self._recent_seconds)
        acceptance = ratio(self._accepted, self._tested)
        unread = self._prompt.tokens - self._prompt.reused
        return Figures(
            drafter=telling.drafter,
            reason=telling.reason,
            tokens=self._tokens,
            passes=self._passes,
            proposed=self._proposed,
            tested=self._tested,
            accepted=self._accepted,
            depth=telling.proposed,
            seconds=self._seconds,
            tokens_per_second=ratio(self._tokens, self._seconds),
            tokens_per_second_now=now,
            acceptance=acceptance,
            acceptance_now=ratio(self._recent_accepted, self._recent_tested),
            tokens_per_pass=ratio(self._tokens, self._passes),
            tokens_per_pass_now=ratio(self._recent_tokens, len(self._recent)),
            expected_per_pass=self._expected(acceptance),
            ceiling=None if acceptance is None else ratio(1.0, 1.0 - acceptance),
            plain_tokens_per_second=None if plain_seconds is None else ratio(1.0, plain_seconds),
            speed_up=self._speed_up(now, plain_seconds),
            time_to_first_token=self._first_token,
            prompt_tokens=self._prompt.tokens,
            prompt_reused=self._prompt.reused,
            prompt_tokens_per_second=ratio(unread, self._prompt.seconds) if unread else None,
            # A full context's last token has no cell: it is kept, and nothing follows it.
            context_used=min(event.context_used, self._prompt.context_size),
            context_size=self._prompt.context_size,
        )

    def _speed_up(self, now: float | None, plain_seconds: float | None) -> float | None:
        if now is None or plain_seconds is None or self._tokens < FEWEST_COMPARED:
            return None
        says = self._recent_tested >= LEAST_TESTED * len(self._recent)
        return possible(now * plain_seconds, ratio(self._recent_tokens, len(self._recent))) if says else None

    def _expected(self, acceptance: float | None) -> float | None:
        """Theory, averaged over the depths of this reply's rounds: depth 0 is plain's one token a pass."""
        if acceptance is None:
            return None
        expected = sum(n * expected_tokens_per_pass(acceptance, depth) for depth, n in self._depths.items())
        return expected / self._passes


def possible(speed_up: float, tokens_per_pass: float | None) -> float:
    """A speed-up as far as it can be one: no pass takes less time than plain's.

    Where more was measured, the machine was busier when plain was than when the reply was written.
    """
    return speed_up if tokens_per_pass is None else min(speed_up, tokens_per_pass)


def _is_forced(event: Round) -> bool:
    """Whether it wrote the one token that a limit had room for: nothing could be proposed, whatever pays."""
    return event.finish in ("length", "context") and not event.proposed


def ratio(numerator: float, denominator: float) -> float | None:
    """numerator / denominator, or None where that means nothing."""
    return numerator / denominator if denominator > 0.0 else None
