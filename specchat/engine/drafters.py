"""Whatever proposes: the draft model, or the n-gram look-up of the conversation itself, behind one small interface.

Contract: `propose` returns tokens with the distribution q that each was *really* drawn from. Whether to propose one
more is decided before it is drawn (from the kept prefix, the earlier proposals and the shape of q), never after:
dropping a drawn token for its own probability would bias the output.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from specchat.engine.cache import Cache
from specchat.engine.sampling import Distribution, Sampler, acceptance_of, confidence, window


@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposed token and the distribution that it was drawn from."""

    token: int
    q: Distribution


@dataclass(frozen=True, slots=True)
class Draft:
    """A drafter's part of a round."""

    proposals: tuple[Proposal, ...] = ()
    confidences: tuple[float, ...] = ()  # the draft model's, for each step it made, a declined one included
    declined: Distribution | None = None  # q of the step that was not worth a draw
    reason: str = ""  # why there is nothing at all


@dataclass(frozen=True, slots=True)
class Offer:
    """What a drafter could propose now, as the policy prices it."""

    room: int  # the most tokens it can propose
    match: int = 0  # n-gram: tokens of context that matched
    quotes: bool = False  # n-gram: what follows the match was there before the reply began
    unread: int = 1  # draft model: tokens it must read before the first proposal
    token: int = -1  # n-gram: what it would propose first


@dataclass(frozen=True, slots=True)
class Judgement:
    """An idle drafter compared with the target over tokens just kept."""

    tokens: tuple[tuple[float, float], ...] = ()  # (confidence, acceptance) at each
    step_seconds: float | None = None  # what a draft step took


STILL_READING: Final = "the draft is still reading the conversation"
JUDGED_WINDOW: Final = 64  # tokens that a long-idle draft reads to be judged by the last of them
JUDGED_ROWS: Final = 16
# So short of context a draft fails more often than in earnest: by the odds, 1.59 times with a Q4_0 copy of a 135M model
# at temperature 0 (0.793 of the tokens for 0.859), 1.50 times with a pruned one (0.707 for 0.783).
SHORT_SIGHTED: Final = 1.5

# Asked before x_i is drawn: (i counted from 0, the draft's confidence there) -> is it worth proposing?
Continue = Callable[[int, float], bool]


def always(_index: int, _confidence: float) -> bool:
    """Propose to the full depth."""
    return True


class Drafter(Protocol):
    """Proposes tokens for the target to verify. `kept` is always the whole conversation: prompt and reply so far."""

    name: str

    def read(self, kept: Sequence[int]) -> Iterator[int]:
        """Catch up with a long prompt, yielding how many tokens are still unread after each batch."""

    def offer(self, kept: Sequence[int], room: int) -> Offer:
        """What can be proposed after `kept`, at most `room` tokens, without proposing it."""

    def propose(self, kept: Sequence[int], depth: int, sampler: Sampler, worth: Continue = always) -> Draft:
        """Up to `depth` proposals for the tokens that follow `kept`."""

    def rollback(self, n_tokens: int) -> None:
        """Keep at most the first `n_tokens` of the conversation: what lies after them was not kept."""

    def judge(self, kept: Sequence[int], sampler: Sampler, probabilities: Sequence[float]) -> Judgement:
        """Compare with the last tokens of `kept`, which the target kept with `probabilities`.

        Judges an idle drafter without spending a target pass on it.
        """


class ModelDrafter:
    """The draft model, sampled with the user's own settings.

    Sampling with q as drawn accepts more than greedy proposals do (0.805 against 0.749 with a 1.5B/0.5B pair at
    temperature 0.8); at temperature 0 both are the same one-hot q.
    """

    name = "draft"

    # Tokens read at once: a 0.5B draft on two cores reads them in a third of a second, a GPU in some milliseconds.
    BATCH: Final = 64

    def __init__(
        self,
        context: Cache,
        target_vocabulary: int,
        is_eog: Callable[[int], bool] = lambda _token: False,
        *,
        substitute: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`substitute` enters the draft's cache in place of ids that only the target's vocabulary has."""
        self._context = context
        self._is_eog = is_eog
        self._clock = clock
        # Ids from here on exist in one vocabulary only: masked from q before drawing, never fed to the draft.
        self._shared = min(context.n_vocab, target_vocabulary)
        self._substitute = substitute

    @property
    def n_cached(self) -> int:
        return len(self._context.tokens)

    def read(self, kept: Sequence[int]) -> Iterator[int]:
        self._match(kept)
        while (unread := len(kept) - 1 - self.n_cached) > 0:
            start = self.n_cached
            self._context.decode(self._fed(kept[start : start + min(unread, self.BATCH)]), 0)
            yield len(kept) - 1 - self.n_cached

    def offer(self, kept: Sequence[int], room: int) -> Offer:
        # Proposing k tokens leaves kept + k - 1 cells filled: the last proposal is never decoded here.
        return Offer(min(room, self._context.n_ctx - len(kept) + 1), unread=len(kept) - self.n_cached)

    def propose(self, kept: Sequence[int], depth: int, sampler: Sampler, worth: Continue = always) -> Draft:
        proposals: list[Proposal] = []
        confidences: list[float] = []
        preceding = window(kept, sampler.settings)
        unread = self._fed(kept[self.n_cached :])
        if len(unread) > self.BATCH:
            # A draft that was long idle: text goes on coming, and a cancel takes effect, while it catches up.
            self._context.decode(unread[: self.BATCH], 0)
            return Draft(reason=STILL_READING)
        # After a token that ends a generation nothing is kept: steps for more, and rows to verify it, would be wasted.
        while len(proposals) < depth and not (proposals and self._is_eog(proposals[-1].token)):
            logits = self._context.decode(unread, 1)[0, : self._shared]
            q = sampler.distribution(logits, preceding)
            confidences.append(confidence(logits, q, sampler.settings))
            if not worth(len(proposals), confidences[-1]):
                return Draft(tuple(proposals), tuple(confidences), q)
            token = sampler.draw(q)
            proposals.append(Proposal(token, q))
            preceding.append(token)
            unread = [token]
        return Draft(tuple(proposals), tuple(confidences))

    def rollback(self, n_tokens: int) -> None:
        self._context.rollback(min(self.n_cached, n_tokens))

    def judge(self, kept: Sequence[int], sampler: Sampler, probabilities: Sequence[float]) -> Judgement:
        unread = len(kept) - 1 - self.n_cached
        # Reading all that a long-idle draft missed would cost more than it is worth: the last tokens stand for the
        # whole, and as the cache is then no prefix of the conversation, it is emptied again.
        passing = unread > JUDGED_WINDOW
        rows = min(len(probabilities), JUDGED_ROWS if passing else unread)
        if rows <= 0:
            return Judgement()
        if passing:
            self._context.rollback(0)
        start = len(kept) - 1 - JUDGED_WINDOW if passing else self.n_cached
        fed, places = self._fed(kept[start:-1]), range(len(kept) - rows, len(kept))
        try:
            judged = self._judged(fed[:-1], places[:-1], kept, sampler, probabilities) if fed[:-1] else []
            # The last is read apart, as in a draft step: what was measured at load may have been disturbed, and an
            # idle draft that is thought too dear would stay idle.
            began = self._clock()
            judged += self._judged(fed[-1:], places[-1:], kept, sampler, probabilities)
            seconds = self._clock() - began
            return Judgement(tuple(in_earnest(judged) if passing else judged), seconds)
        finally:
            if passing:
                self._context.rollback(0)

    def _judged(
        self, fed: list[int], places: range, kept: Sequence[int], sampler: Sampler, probabilities: Sequence[float]
    ) -> list[tuple[float, float]]:
        """Read `fed` and compare its last rows with what was kept at `places`."""
        logits = self._context.decode(fed, len(places))[:, : self._shared]
        judged: list[tuple[float, float]] = []
        for row, at in enumerate(places):
            q = sampler.distribution(logits[row], window(kept, sampler.settings, at))
            accepted = acceptance_of(kept[at], probabilities[at - len(kept)], q)
            judged.append((confidence(logits[row], q, sampler.settings), accepted))
        return judged

    def _fed(self, tokens: Sequence[int]) -> list[int]:
        return [token if token < self._context.n_vocab else self._substitute for token in tokens]

    def _match(self, kept: Sequence[int]) -> None:
        """Roll back to the longest prefix that the cache shares with `kept` minus its last token."""
        self._context.rollback(common_prefix(self._context.tokens, self._fed(kept[:-1])))


class NgramDrafter:
    """Proposes what followed the longest, then most recent, earlier occurrence of the conversation's last tokens.

    Prompt look-up decoding. The index is incremental: every new token costs one dictionary entry for each order
    however long the conversation is; nothing is scanned. Needs no memory worth naming and is deterministic (one-hot q).
    What it proposes ends where a message did: after a token that ends a generation nothing is kept, and rows for it
    would be verified for nothing.
    """

    name = "ngram"
    # Doubling orders: a match is found to within a factor of two and then extended by direct comparison.
    ORDERS = (16, 8, 4, 2)
    LONGEST = 64

    def __init__(self, is_eog: Callable[[int], bool] = lambda _token: False) -> None:
        self._is_eog = is_eog
        self._tokens: list[int] = []
        self._ends: list[int] = []  # positions of tokens that end a generation
        self._reply = 0  # position of the reply's first token
        # For each order: the last n tokens -> position of what followed their most recent occurrence.
        self._index: list[dict[tuple[int, ...], int]] = [{} for _ in self.ORDERS]

    def read(self, kept: Sequence[int]) -> Iterator[int]:
        # Only a new prompt can change what lies before the end: compared once a reply, never within one.
        if common_prefix(self._tokens, kept) < len(self._tokens):
            self._restart()
        self._catch_up(kept)
        self._reply = len(kept)
        return iter(())

    def offer(self, kept: Sequence[int], room: int) -> Offer:
        position, length = self._match(kept)
        if not length:
            return Offer(0)
        room = min(room, self.LONGEST, self._left(position))
        return Offer(room, length, position < self._reply, token=self._tokens[position])

    def _left(self, position: int) -> int:
        """How many tokens there are from `position` to the end of a message, that one included."""
        at = bisect_left(self._ends, position)
        return self._ends[at] + 1 - position if at < len(self._ends) else self.LONGEST

    def _match(self, kept: Sequence[int]) -> tuple[int, int]:
        """(position of the continuation, length of the match); (0, 0) when there is none."""
        self._catch_up(kept)
        tokens = self._tokens
        for order, index in zip(self.ORDERS, self._index, strict=True):
            if len(tokens) > order and (found := index.get(tuple(tokens[-order:]))) is not None:
                length = order
                while length < min(self.LONGEST, found) and tokens[found - length - 1] == tokens[-length - 1]:
                    length += 1
                return found, length
        return 0, 0

    def propose(self, kept: Sequence[int], depth: int, _sampler: Sampler, _worth: Continue = always) -> Draft:
        position, length = self._match(kept)
        depth = min(depth, self._left(position))
        run = self._tokens[position : position + depth] if length else []
        # A match that overlaps the end is a repetition: go on round its period.
        while run and len(run) < depth:
            run.append(run[len(run) - (len(self._tokens) - position)])
        return Draft(tuple(Proposal(token, Distribution.one_hot(token)) for token in run))

    def rollback(self, n_tokens: int) -> None:
        """Nothing to forget: only kept tokens enter the index."""

    def judge(self, _kept: Sequence[int], _sampler: Sampler, _probabilities: Sequence[float]) -> Judgement:
        """Nothing to run: its offers can be compared with what was kept, for free."""
        return Judgement()

    def _catch_up(self, kept: Sequence[int]) -> None:
        for token in kept[len(self._tokens) :]:
            self._append(token)

    def _append(self, token: int) -> None:
        position = len(self._tokens)
        for order, index in zip(self.ORDERS, self._index, strict=True):
            if position >= order:
                index[tuple(self._tokens[-order:])] = position
        if self._is_eog(token):
            self._ends.append(position)
        self._tokens.append(token)

    def _restart(self) -> None:
        self._tokens.clear()
        self._ends.clear()
        for index in self._index:
            index.clear()


def all_drafters(draft: Cache | None, target_vocabulary: int, is_eog: Callable[[int], bool]) -> dict[str, Drafter]:
    """Everything that can propose for a target, by name: the look-up, and the draft model where there is one."""
    drafters: dict[str, Drafter] = {NgramDrafter.name: NgramDrafter(is_eog)}
    if draft is not None:
        drafters[ModelDrafter.name] = ModelDrafter(draft, target_vocabulary, is_eog)
    return drafters


def in_earnest(judged: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """What was seen with little context, as it would have been with all of it: on average, not token by token."""
    gain = (SHORT_SIGHTED - 1.0) * sum(accepted for _, accepted in judged) / len(judged)
    made_up = gain / (1.0 + gain)  # the share of the failures that would have been none
    return [(confidence, accepted + (1.0 - accepted) * made_up) for confidence, accepted in judged]


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest prefix that both share."""
    limit = min(len(a), len(b))
    return next((i for i in range(limit) if a[i] != b[i]), limit)
