"""Whatever proposes: the draft model, or the n-gram look-up of the conversation itself, behind one small interface.

Contract: `propose` returns tokens with the distribution q that each was *really* drawn from. Whether to propose one
more is decided before it is drawn (from the kept prefix, the earlier proposals and the shape of q), never after:
dropping a drawn token for its own probability would bias the output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from specchat.engine.cache import Cache
from specchat.engine.sampling import Distribution, Sampler, window


@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposed token and the distribution that it was drawn from."""

    token: int
    q: Distribution


@dataclass(frozen=True, slots=True)
class Offer:
    """What a drafter could propose now, as the policy prices it."""

    room: int  # the most tokens it can propose
    match: int = 0  # n-gram: tokens of context that matched
    unread: int = 1  # draft model: tokens it must read before the first proposal


# Asked before x_i is drawn: (i counted from 0, q_i) -> is it worth proposing?
Continue = Callable[[int, Distribution], bool]


def always(_index: int, _q: Distribution) -> bool:
    """Propose to the full depth."""
    return True


class Drafter(Protocol):
    """Proposes tokens for the target to verify. `kept` is always the whole conversation: prompt and reply so far."""

    name: str

    def read(self, kept: Sequence[int]) -> Iterator[int]:
        """Catch up with a long prompt, yielding how many tokens are still unread after each batch."""

    def offer(self, kept: Sequence[int]) -> Offer:
        """What can be proposed after `kept`, without proposing it."""

    def propose(self, kept: Sequence[int], depth: int, sampler: Sampler, worth: Continue = always) -> list[Proposal]:
        """Up to `depth` proposals for the tokens that follow `kept`."""

    def rollback(self, n_tokens: int) -> None:
        """Keep at most the first `n_tokens` of the conversation: what lies after them was not kept."""


class ModelDrafter:
    """The draft model, sampled with the user's own settings.

    Sampling with q as drawn accepts more than greedy proposals do (0.805 against 0.749 with a 1.5B/0.5B pair at
    temperature 0.8); at temperature 0 both are the same one-hot q.
    """

    name = "draft"

    def __init__(self, context: Cache, target_vocabulary: int, *, batch: int = 512, substitute: int = 0) -> None:
        """`substitute` enters the draft's cache in place of ids that only the target's vocabulary has."""
        self._context = context
        # Ids from here on exist in one vocabulary only: masked from q before drawing, never fed to the draft.
        self._shared = min(context.n_vocab, target_vocabulary)
        self._batch = batch
        self._substitute = substitute

    @property
    def n_cached(self) -> int:
        return len(self._context.tokens)

    def read(self, kept: Sequence[int]) -> Iterator[int]:
        self._match(kept)
        while (unread := len(kept) - 1 - self.n_cached) > 0:
            start = self.n_cached
            self._context.decode(self._fed(kept[start : start + min(unread, self._batch)]), 0)
            yield len(kept) - 1 - self.n_cached

    def offer(self, kept: Sequence[int]) -> Offer:
        # Proposing k tokens leaves kept + k - 1 cells filled: the last proposal is never decoded here.
        return Offer(max(0, self._context.n_ctx - len(kept) + 1), unread=len(kept) - self.n_cached)

    def propose(self, kept: Sequence[int], depth: int, sampler: Sampler, worth: Continue = always) -> list[Proposal]:
        proposals: list[Proposal] = []
        preceding = window(kept, sampler.settings)
        unread = self._fed(kept[self.n_cached :])
        while len(proposals) < depth:
            logits = self._context.decode(unread, 1)[0, : self._shared]
            q = sampler.distribution(logits, preceding)
            if not worth(len(proposals), q):
                break
            token = sampler.draw(q)
            proposals.append(Proposal(token, q))
            preceding.append(token)
            unread = [token]
        return proposals

    def rollback(self, n_tokens: int) -> None:
        self._context.rollback(min(self.n_cached, n_tokens))

    def overlap_rows(self, kept: Sequence[int], sampler: Sampler, rows: int) -> list[Distribution]:
        """q for each of the last `rows` tokens of `kept`, in the batch that catches up: judging without proposing."""
        unread = len(kept) - 1 - self.n_cached
        rows = min(rows, unread)
        if rows <= 0:
            return []
        fed = self._fed(kept[self.n_cached : -1])
        logits = self._context.decode(fed, rows)
        first = len(kept) - rows
        return [sampler.distribution(logits[i, : self._shared], kept[: first + i]) for i in range(rows)]

    def _fed(self, tokens: Sequence[int]) -> list[int]:
        return [token if token < self._context.n_vocab else self._substitute for token in tokens]

    def _match(self, kept: Sequence[int]) -> None:
        """Roll back to the longest prefix that the cache shares with `kept` minus its last token."""
        self._context.rollback(common_prefix(self._context.tokens, self._fed(kept[:-1])))


class NgramDrafter:
    """Proposes what followed the longest, then most recent, earlier occurrence of the conversation's last tokens.

    Prompt look-up decoding. The index is incremental: every new token costs one dictionary entry for each order
    however long the conversation is; nothing is scanned. Needs no memory worth naming and is deterministic (one-hot q).
    """

    name = "ngram"
    # Doubling orders: a match is found to within a factor of two and then extended by direct comparison.
    ORDERS = (16, 8, 4, 2)
    LONGEST = 64

    def __init__(self) -> None:
        self._tokens: list[int] = []
        # For each order: the last n tokens -> position of what followed their most recent occurrence.
        self._index: list[dict[tuple[int, ...], int]] = [{} for _ in self.ORDERS]

    def read(self, kept: Sequence[int]) -> Iterator[int]:
        # Only a new prompt can change what lies before the end: compared once a reply, never within one.
        if common_prefix(self._tokens, kept) < len(self._tokens):
            self._restart()
        self._catch_up(kept)
        return iter(())

    def offer(self, kept: Sequence[int]) -> Offer:
        length = self._match(kept)[1]
        return Offer(self.LONGEST if length else 0, match=length)

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

    def propose(self, kept: Sequence[int], depth: int, _sampler: Sampler, worth: Continue = always) -> list[Proposal]:
        position, length = self._match(kept)
        run = self._tokens[position : position + depth] if length else []
        # A match that overlaps the end is a repetition: go on round its period.
        while run and len(run) < depth:
            run.append(run[len(run) - (len(self._tokens) - position)])
        proposals = (Proposal(token, Distribution.one_hot(token)) for token in run)
        return [p for i, p in enumerate(proposals) if worth(i, p.q)]

    def rollback(self, n_tokens: int) -> None:
        """Nothing to forget: only kept tokens enter the index."""

    def _catch_up(self, kept: Sequence[int]) -> None:
        for token in kept[len(self._tokens) :]:
            self._append(token)

    def _append(self, token: int) -> None:
        position = len(self._tokens)
        for order, index in zip(self.ORDERS, self._index, strict=True):
            if position >= order:
                index[tuple(self._tokens[-order:])] = position
        self._tokens.append(token)

    def _restart(self) -> None:
        self._tokens.clear()
        for index in self._index:
            index.clear()


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest prefix that both share."""
    limit = min(len(a), len(b))
    return next((i for i in range(limit) if a[i] != b[i]), limit)
