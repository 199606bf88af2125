"""The loop: draft, verify, accept, roll back; yields one `Round` a target pass.

Contract. Between rounds, after a cancel and after an error alike: the target's cache holds exactly the kept tokens
minus the last, and a drafter's holds a verified prefix of them. The kept tokens are distributed exactly as the target
alone would have written them, whatever is proposed (Leviathan et al. 2023, algorithm 1). Nothing after an
end-of-generation token is kept. The generator may be closed at any round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from specchat.engine.cache import Cache, Logits, RollbackError
from specchat.engine.drafters import JUDGED_WINDOW, Draft, Drafter, Proposal
from specchat.engine.policy import Choice, Mode, Policy
from specchat.engine.rounds import Origin, Round
from specchat.engine.sampling import Sampler, SamplingSettings, acceptance_of, residual, window
from specchat.errors import SpecchatError


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the target made of a round's proposals."""

    tokens: tuple[int, ...]
    origins: tuple[Origin, ...]
    tested: int
    accepted: int
    probability: float = 0.0  # the target's own, of the token that it wrote without a proposal


def verify(
    proposals: Sequence[Proposal],
    logits: Logits,
    preceding: Sequence[int],
    sampler: Sampler,
    is_eog: Callable[[int], bool],
) -> Verdict:
    """Judge the proposals in order; one more token comes from the target itself.

    `logits` (len(proposals) + 1, n_vocab) are the target's rows after the last kept token and after each proposal;
    `preceding` the tokens before the first row's position, as far back as the penalties look.
    """
    before = list(preceding)
    kept: list[int] = []
    for row, (token, q) in enumerate((x.token, x.q) for x in proposals):
        p = sampler.distribution(logits[row], before)
        if not sampler.accepts(p, q, token):
            kept.append(sampler.draw(residual(p, q)))
            return Verdict(tuple(kept), (Origin.ACCEPTED,) * row + (Origin.CORRECTED,), row + 1, row)
        kept.append(token)
        before.append(token)
        if is_eog(token):
            return Verdict(tuple(kept), (Origin.ACCEPTED,) * (row + 1), row + 1, row + 1)
    k = len(proposals)
    p = sampler.distribution(logits[k], before)
    kept.append(sampler.draw(p))
    last = Origin.BONUS if proposals else Origin.PLAIN
    return Verdict(tuple(kept), (Origin.ACCEPTED,) * k + (last,), k, k, p.probability(kept[-1]))


class Decoder:
    """One target with its drafters. `run` writes one reply; nothing but the caches and the policy outlives it."""

    def __init__(
        self,
        target: Cache,
        drafters: Mapping[str, Drafter],
        policy: Policy,
        *,
        is_eog: Callable[[int], bool],
        max_depth: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`max_depth` is the most proposals that the target could take back; None: any number."""
        self._target = target
        self._drafters = dict(drafters)
        self._policy = policy
        self._is_eog = is_eog
        self._max_depth = max_depth
        self._clock = clock
        self._plain: list[float] = []  # the target's probabilities of the plain tokens just kept, for judging a draft
        self._inserted: Sequence[int] = ()
        self.lost: dict[str, str] = {}  # drafters that failed, with the reason

    def run(self, prompt: Sequence[int], sampling: SamplingSettings, max_tokens: int | None = None) -> Iterator[Round]:
        """Rounds until an end-of-generation token, `max_tokens` or a full context; the last one says which.

        The target's cache must hold prompt[:-1]. Raises Cancelled in mid-pass, with the caches as after the last round.
        """
        kept = list(prompt)
        end = len(kept) + max_tokens if max_tokens is not None else None
        sampler = Sampler(sampling)
        if len(kept) > self._target.n_ctx or end == len(kept):
            raise ValueError("no room for a single token")
        finish = ""
        while not finish:
            end = self._take_in(kept, end)
            event = self._round(kept, self._room(kept, end), sampler)
            if self._is_eog(kept[-1]):
                finish = "end"
            elif end is not None and len(kept) >= end:
                finish = "length"
            elif len(kept) > self._target.n_ctx:
                finish = "context"
            self._policy.record(event)
            yield replace(event, finish=finish) if finish else event

    def insert(self, tokens: Sequence[int]) -> None:
        """Have the reply go on, from the next round on, as if the target had written `tokens` next.

        They belong to no round and do not count towards `max_tokens`. There must be room for them and one more.
        """
        self._inserted = tokens

    def _take_in(self, kept: list[int], end: int | None) -> int | None:
        """Read what was inserted; answers with the new end."""
        tokens, self._inserted = self._inserted, ()
        if not tokens:
            return end
        self._target.decode([kept[-1], *tokens[:-1]], 0)
        kept.extend(tokens)
        self._plain = []
        return None if end is None else end + len(tokens)

    def admit(self, drafter: Drafter) -> None:
        """Have one more drafter from the next round on."""
        self._drafters[drafter.name] = drafter

    def give_up(self, drafter: str) -> None:
        """Do without a drafter from the next round on: its model is gone."""
        self._drafters.pop(drafter, None)

    def _room(self, kept: Sequence[int], end: int | None) -> int:
        """The most proposals a round may verify: the pass adds k + 1 cells and keeps at most k + 1 tokens."""
        room = self._target.n_ctx - len(kept)
        if self._max_depth is not None:
            room = min(room, self._max_depth)
        return room if end is None else min(room, end - len(kept) - 1)

    def _round(self, kept: list[int], room: int, sampler: Sampler) -> Round:
        """One round; extends `kept`. Whatever happens, both caches end as prefixes of `kept` minus its last token."""
        started = self._clock()
        try:
            # 1. Which drafter, how deep; 0 is plain.
            choice = self._choose(kept, room)
            if choice.judge and (failure := self._judge(kept, sampler)):
                choice = Choice("plain", 0, failure)
            # 2. Propose.
            draft = self._propose(choice, kept, sampler)
            proposals = draft.proposals
            drafted = self._clock()
            # 3. One target pass over the last kept token and the proposals.
            batch = [kept[-1], *(proposal.token for proposal in proposals)]
            logits = self._target.decode(batch, len(batch))
            passed = self._clock()
            # 4. Accept or correct.
            verdict = verify(proposals, logits, window(kept, sampler.settings), sampler, self._is_eog)
            kept.extend(verdict.tokens)
            self._plain = [*self._plain[-JUDGED_WINDOW:], verdict.probability] if not proposals else []
        finally:
            # 5. Both caches back to what was kept.
            self._settle(kept)
        return Round(
            tokens=verdict.tokens,
            origins=verdict.origins,
            drafter=choice.drafter if proposals else "plain",
            proposed=len(proposals),
            tested=verdict.tested,
            accepted=verdict.accepted,
            draft_seconds=drafted - started,
            target_seconds=passed - drafted,
            total_seconds=self._clock() - started,
            context_used=len(kept),
            confidences=draft.confidences,
            declined=self._declined(draft, verdict),
            reason=draft.reason or choice.reason,
        )

    def _choose(self, kept: Sequence[int], room: int) -> Choice:
        if self._policy.speculation.mode is Mode.OFF:  # an offer costs a look-up
            return self._policy.choose({})
        offers = ((name, drafter.offer(kept, room)) for name, drafter in self._drafters.items())
        return self._policy.choose({name: offer for name, offer in offers if offer.room > 0})

    def lose(self, drafter: Drafter, error: SpecchatError | RollbackError) -> str:
        """A drafter that fails is given up, not the reply; answers with the reason."""
        self._drafters.pop(drafter.name, None)
        drafter.rollback(0)  # whatever it holds: keeping nothing always succeeds
        self.lost[drafter.name] = reason = f"the draft failed: {error}"
        return reason

    def _propose(self, choice: Choice, kept: Sequence[int], sampler: Sampler) -> Draft:
        if choice.depth == 0:
            return Draft()
        drafter = self._drafters[choice.drafter]
        try:
            return drafter.propose(kept, choice.depth, sampler, choice.worth)
        except SpecchatError as error:
            return Draft(reason=self.lose(drafter, error))

    def _declined(self, draft: Draft, verdict: Verdict) -> float | None:
        """What the target wrote where the draft stopped tells for free what going on would have been worth."""
        if draft.declined is None or verdict.accepted < len(draft.proposals) or verdict.probability <= 0.0:
            return None
        return acceptance_of(verdict.tokens[-1], verdict.probability, draft.declined)

    def _judge(self, kept: Sequence[int], sampler: Sampler) -> str:
        """Compare idle drafters with the tokens just kept; answers with the failure of one, if there was any."""
        failure = ""
        for drafter in list(self._drafters.values()):
            try:
                self._policy.judged(drafter.judge(kept, sampler, self._plain))
            except SpecchatError as error:
                failure = self.lose(drafter, error)
        return failure

    def _settle(self, kept: Sequence[int]) -> None:
        for drafter in list(self._drafters.values()):
            try:
                drafter.rollback(len(kept) - 1)
            except RollbackError as error:
                self.lose(drafter, error)
        try:
            self._target.rollback(len(kept) - 1)
        except RollbackError:
            # Recognised before any draft is loaded (Context.rollback_limit); should it happen all the same,
            # reading the kept tokens again is slow but right, and nothing is proposed any more.
            self._drafters.clear()
            self._target.rollback(0)
            self._target.decode(kept[:-1], 0)
