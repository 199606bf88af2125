"""What must hold after every round, cancel and error, whatever drafts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specchat.engine.acceptance import Learned
from specchat.engine.cache import Cancelled, Logits
from specchat.engine.costs import Costs
from specchat.engine.decoder import Decoder
from specchat.engine.drafters import (
    JUDGED_ROWS,
    JUDGED_WINDOW,
    SHORT_SIGHTED,
    STILL_READING,
    Judgement,
    ModelDrafter,
    NgramDrafter,
    Offer,
    all_drafters,
    in_earnest,
)
from specchat.engine.policy import AdaptivePolicy, Choice, FixedPolicy, Mode, Policy, Speculation
from specchat.engine.rounds import Origin, Round
from specchat.engine.sampling import Sampler, SamplingSettings
from specchat.errors import SpecchatError
from tests.scripted_models import ScriptedCache, VirtualClock, deterministic, from_table, pair_table

N = 8
PROMPT = [1, 2, 3, 1, 2]
GREEDY = SamplingSettings(temperature=0.0)
WARM = SamplingSettings(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=5)


class Bench:
    """A decoder over scripted models, with everything that a test looks at."""

    def __init__(self, policy: Policy, *, n_ctx: int = 256, draft_ctx: int = 256, eog: int = -1) -> None:
        self.clock = clock = VirtualClock()
        table = pair_table(N, seed=3)
        self.target = ScriptedCache(from_table(table), N, n_ctx, clock=clock, cost=lambda n: 1 + 0.1 * n)
        self.draft = ScriptedCache(
            from_table((table + pair_table(N, 4)) / 2), N, draft_ctx, clock=clock, cost=lambda _: 0.2
        )

        def is_eog(token: int) -> bool:
            return token == eog

        self.drafters = all_drafters(self.draft, N, is_eog)
        self.decoder = Decoder(self.target, self.drafters, policy, is_eog=is_eog, clock=clock)
        self.kept = list(PROMPT)
        self.target.decode(PROMPT[:-1], 0)

    def consistent(self) -> bool:
        """The target holds the kept tokens minus the last; the draft a prefix of them."""
        drafted = list(self.draft.tokens)
        return list(self.target.tokens) == self.kept[:-1] and drafted == self.kept[: len(drafted)]

    def run(self, sampling: SamplingSettings = WARM, max_tokens: int | None = 40) -> list[Round]:
        events = []
        for event in self.decoder.run(self.kept, sampling, max_tokens):
            self.kept.extend(event.tokens)
            events.append(event)
            assert self.consistent()
        return events


POLICIES: Mapping[str, Callable[[], Policy]] = {
    "plain": lambda: FixedPolicy(Speculation(Mode.OFF)),
    "draft": lambda: FixedPolicy(Speculation(Mode.DRAFT, 3)),
    "ngram": lambda: FixedPolicy(Speculation(Mode.NGRAM, 5)),
    "auto": lambda: AdaptivePolicy(Speculation()),
}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_the_caches_hold_what_was_kept_after_every_round(
    policy: Callable[[], Policy], sampling: SamplingSettings
) -> None:
    bench = Bench(policy())
    events = bench.run(sampling)
    assert len(bench.kept) == len(PROMPT) + 40
    assert events[-1].finish == "length"
    assert all(event.finish == "" for event in events[:-1])


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_cancelled_pass_leaves_both_caches_as_before_it(policy: Callable[[], Policy]) -> None:
    bench = Bench(policy())
    rounds = bench.decoder.run(bench.kept, WARM, 40)
    for _ in range(3):
        bench.kept.extend(next(rounds).tokens)
    bench.target.interrupt = Cancelled()
    with pytest.raises(Cancelled):
        next(rounds)
    assert bench.consistent()
    bench.run()  # and the conversation goes on


def test_an_error_in_the_draft_leaves_both_caches_as_before_it() -> None:
    bench = Bench(POLICIES["draft"]())
    rounds = bench.decoder.run(bench.kept, WARM, 40)
    bench.kept.extend(next(rounds).tokens)
    bench.draft.interrupt = MemoryError("scripted")
    with pytest.raises(MemoryError):
        next(rounds)
    assert bench.consistent()


def test_a_draft_that_fails_costs_the_draft_and_not_the_reply() -> None:
    bench = Bench(POLICIES["draft"]())
    rounds = bench.decoder.run(bench.kept, WARM, 40)
    bench.kept.extend(next(rounds).tokens)
    bench.draft.interrupt = SpecchatError("no memory for a batch")
    events = []
    for event in rounds:
        bench.kept.extend(event.tokens)
        assert bench.consistent()
        events.append(event)
    assert events[0].reason == "the draft failed: no memory for a batch"
    assert {event.drafter for event in events} == {"plain"}
    assert len(bench.kept) == len(PROMPT) + 40


def long_idle(policy: Policy, missed: int = 300) -> Bench:
    bench = Bench(policy, n_ctx=1024, draft_ctx=1024)
    for i in range(missed):
        bench.target.decode(bench.kept[-1:], 0)
        bench.kept.append(i % N)
    return bench


@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.DRAFT])
def test_a_draft_that_was_long_idle_catches_up_a_batch_a_round(mode: Mode) -> None:
    certain = Costs({1: 1.0, 32: 1.1}, {1: 0.01, 512: 0.1}, measured=True)
    bench = long_idle(AdaptivePolicy(Speculation(mode), certain, Learned(0.9)))
    events = bench.run(max_tokens=60)
    assert max(bench.draft.widths) <= ModelDrafter.BATCH
    reading = [event.reason == STILL_READING for event in events]
    begun = reading.index(True)
    assert 300 // ModelDrafter.BATCH <= sum(reading) <= 300 // ModelDrafter.BATCH + 1
    assert all(reading[begun : begun + sum(reading)])  # one after the other
    assert events[begun + sum(reading)].drafter == "draft"


def test_a_cancel_while_a_draft_catches_up_keeps_what_it_has_read() -> None:
    bench = long_idle(POLICIES["draft"]())
    rounds = bench.decoder.run(bench.kept, WARM, 40)
    for _ in range(2):
        bench.kept.extend(next(rounds).tokens)
    bench.draft.interrupt = Cancelled()
    with pytest.raises(Cancelled):
        next(rounds)
    assert bench.consistent()
    assert len(bench.draft.tokens) == 2 * ModelDrafter.BATCH


class Breaking(ScriptedCache):
    """Reads, but fails at the second step of a round."""

    def decode(self, tokens: Sequence[int], n_logits: int) -> Logits:
        if len(tokens) == 1 and self.tokens:
            raise SpecchatError("no memory for a step")
        return super().decode(tokens, n_logits)


def test_a_draft_that_fails_in_the_middle_of_proposing_holds_no_proposal_afterwards() -> None:
    bench = Bench(POLICIES["draft"]())
    bench.draft.__class__ = Breaking
    bench.run()
    assert bench.decoder.lost == {"draft": "the draft failed: no memory for a step"}
    assert bench.consistent()


class Judging(FixedPolicy):
    """Plain, and has the idle draft judged at every round."""

    def choose(self, offers: Mapping[str, Offer]) -> Choice:
        return Choice("plain", 0, f"{len(offers)} offered", judge=True)


class Faulty(ScriptedCache):
    """A cache whose logits are no numbers."""

    def decode(self, tokens: Sequence[int], n_logits: int) -> Logits:
        return np.full_like(super().decode(tokens, n_logits), np.nan)


@pytest.mark.parametrize("tokens", [20, 140], ids=["a few unread", "more than are read to be judged by"])
@pytest.mark.parametrize("fault", ["raises", "answers nonsense"])
def test_a_draft_that_fails_while_it_is_judged_costs_the_draft_and_not_the_reply(fault: str, tokens: int) -> None:
    bench = Bench(Judging(Speculation()))
    bench.run(max_tokens=tokens)  # with no probabilities yet nothing is judged in the first round
    if fault == "raises":
        bench.draft.interrupt = SpecchatError("no memory for a batch")
    else:
        bench.draft.__class__ = Faulty
    bench.draft.rollback(0)
    events = bench.run()
    assert any(event.reason.startswith("the draft failed: ") for event in events)
    assert len(bench.kept) == len(PROMPT) + tokens + 40


class Noting(Judging):
    """Keeps what the judging came to."""

    def __init__(self) -> None:
        super().__init__(Speculation())
        self.judgements: list[Judgement] = []

    def judged(self, judgement: Judgement) -> None:
        if judgement.tokens:
            self.judgements.append(judgement)


@pytest.mark.parametrize("missed", [0, 150], ids=["little missed", "much missed"])
def test_an_idle_draft_is_judged_by_its_overlap_and_its_step_is_timed(missed: int) -> None:
    policy = Noting()
    bench = Bench(policy)
    bench.drafters["draft"] = bench.decoder._drafters["draft"] = ModelDrafter(bench.draft, N, clock=bench.clock)
    for _ in range(missed):
        bench.kept.append(1)
        bench.target.decode(bench.kept[-2:-1], 0)
    bench.run(GREEDY, max_tokens=120)
    assert len(policy.judgements) > 2
    # What a little context shows is made up for; otherwise, greedy texts are judged by zeros and ones.
    outcomes = {accepted for judgement in policy.judgements for _, accepted in judgement.tokens}
    assert (outcomes <= {0.0, 1.0}) == (missed == 0)
    assert max(len(judgement.tokens) for judgement in policy.judgements) <= (JUDGED_ROWS if missed else JUDGED_WINDOW)
    for judgement in policy.judgements:
        assert all(0.0 <= accepted <= 1.0 for _, accepted in judgement.tokens)
        assert judgement.step_seconds == pytest.approx(0.2)  # one pass over one token


@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0)), min_size=1, max_size=40))
def test_little_context_is_made_up_for_by_the_odds_and_never_beyond_certainty(
    judged: list[tuple[float, float]],
) -> None:
    mended = in_earnest(judged)
    before, after = (float(np.mean([accepted for _, accepted in one])) for one in (judged, mended))
    assert all(0.0 <= accepted <= 1.0 for _, accepted in mended)
    assert after == pytest.approx(SHORT_SIGHTED * before / (1.0 + (SHORT_SIGHTED - 1.0) * before))
    assert [confidence for confidence, _ in mended] == [confidence for confidence, _ in judged]


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_greedy_output_is_the_same_with_every_drafter(policy: Callable[[], Policy]) -> None:
    plain, other = Bench(POLICIES["plain"]()), Bench(policy())
    plain.run(GREEDY)
    other.run(GREEDY)
    assert other.kept == plain.kept


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_what_is_inserted_is_gone_on_from_as_if_the_target_had_written_it(policy: Callable[[], Policy]) -> None:
    inserted, bench = [7, 7, 0], Bench(policy())
    rounds = bench.decoder.run(bench.kept, GREEDY, 20)
    before = [token for _ in range(3) for token in next(rounds).tokens]
    bench.decoder.insert(inserted)
    after: list[int] = []
    for event in rounds:
        after += event.tokens
        bench.kept = [*PROMPT, *before, *inserted, *after]
        assert bench.consistent()
    plain = Bench(FixedPolicy(Speculation(Mode.OFF)))
    plain.target.decode([PROMPT[-1], *before, *inserted[:-1]], 0)
    plain.kept = [*PROMPT, *before, *inserted]
    plain.run(GREEDY, len(after))

    assert len(before) + len(after) == 20
    assert plain.kept[-len(after) :] == after


def test_a_cancelled_insertion_leaves_both_caches_as_before_it() -> None:
    bench = Bench(FixedPolicy(Speculation(Mode.DRAFT, 3)))
    rounds = bench.decoder.run(bench.kept, WARM, 20)
    bench.kept += next(rounds).tokens
    bench.decoder.insert([1, 2])
    bench.target.interrupt = Cancelled()
    with pytest.raises(Cancelled):
        next(rounds)

    assert bench.consistent()


@pytest.mark.parametrize("policy", [POLICIES["plain"], POLICIES["draft"], POLICIES["ngram"]])
def test_the_same_seed_gives_the_same_text_at_a_fixed_depth(policy: Callable[[], Policy]) -> None:
    one, two = Bench(policy()), Bench(policy())
    one.run()
    two.run()
    assert one.kept == two.kept


@given(st.integers(1, 30), st.sampled_from(sorted(POLICIES)))
@settings(max_examples=30, deadline=None)
def test_max_tokens_is_exact(max_tokens: int, policy: str) -> None:
    bench = Bench(POLICIES[policy]())
    events = bench.run(max_tokens=max_tokens)
    assert sum(len(event.tokens) for event in events) == max_tokens
    assert events[-1].finish == "length"


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_full_context_ends_the_reply_without_overrunning_it(policy: Callable[[], Policy]) -> None:
    bench = Bench(policy(), n_ctx=32)
    events = bench.run(max_tokens=None)
    assert events[-1].finish == "context"
    assert len(bench.kept) == 33  # the last token is kept, but was not decoded


def test_a_draft_with_a_shorter_context_stops_proposing_when_it_is_full() -> None:
    bench = Bench(POLICIES["draft"](), draft_ctx=20)
    events = bench.run(max_tokens=60)
    assert len(bench.kept) == len(PROMPT) + 60
    assert {event.drafter for event in events} >= {"draft", "plain", "ngram"} - {"ngram"}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_nothing_after_the_end_of_generation_is_kept(policy: Callable[[], Policy]) -> None:
    for seed in range(20):
        bench = Bench(policy(), eog=4)
        events = bench.run(SamplingSettings(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=seed), None)
        assert events[-1].finish == "end"
        assert bench.kept[len(PROMPT) :].index(4) == len(bench.kept) - len(PROMPT) - 1


def test_a_draft_proposes_nothing_after_the_end_that_it_proposed_itself() -> None:
    ended = 0
    for seed in range(20):
        bench = Bench(POLICIES["draft"](), eog=4)
        sampler = Sampler(replace(WARM, seed=seed))
        proposed = [proposal.token for proposal in bench.drafters["draft"].propose(PROMPT, 6, sampler).proposals]
        assert 4 not in proposed[:-1]
        assert len(proposed) == 6 or proposed[-1] == 4
        assert len(bench.draft.tokens) == len(PROMPT) + len(proposed) - 1  # no step for what is not proposed
        ended += len(proposed) < 6
    assert ended


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_round_accounts_for_every_token(policy: Callable[[], Policy]) -> None:
    bench = Bench(policy())
    events = bench.run()
    for event in events:
        assert len(event.origins) == len(event.tokens)
        assert 0 <= event.accepted <= event.tested <= event.proposed
        assert len(event.tokens) == event.accepted + 1
        assert event.tested == event.accepted + (Origin.CORRECTED in event.origins)
        assert event.origins[:-1] == (Origin.ACCEPTED,) * event.accepted
    assert all(a.context_used + len(b.tokens) == b.context_used for a, b in pairwise(events))


def test_a_cache_that_cannot_roll_back_is_read_again_and_nothing_is_proposed_any_more() -> None:
    bench = Bench(POLICIES["draft"]())
    bench.target.can_roll_back = False
    events = list(bench.decoder.run(bench.kept, WARM, 40))
    for event in events:
        bench.kept.extend(event.tokens)
    assert list(bench.target.tokens) == bench.kept[:-1]
    speculated = [event for event in events if event.proposed]
    assert len(speculated) < len(events)
    assert speculated == events[: len(speculated)]  # plain from the first refusal on


def test_a_draft_that_cannot_roll_back_is_dropped() -> None:
    bench = Bench(POLICIES["draft"]())
    bench.draft.can_roll_back = False
    bench.target.interrupt = None
    events = list(bench.decoder.run(bench.kept, WARM, 40))
    assert sum(len(event.tokens) for event in events) == 40
    assert events[-1].drafter == "plain"


def test_a_token_that_only_the_target_has_never_enters_the_draft() -> None:
    text = [1, 2, 7, 3, 4, 7, 5]
    target = ScriptedCache(deterministic(text, 8), 8)
    draft = ScriptedCache(deterministic([token % 6 for token in text], 6), 6)
    decoder = Decoder(
        target, {"draft": ModelDrafter(draft, 8)}, FixedPolicy(Speculation(Mode.DRAFT, 4)), is_eog=lambda _: False
    )
    target.decode(text[:3], 0)
    written = [token for event in decoder.run(text[:4], GREEDY, 30) for token in event.tokens]
    assert written == [text[(4 + i) % 7] for i in range(30)]  # and ScriptedCache refuses an unknown id


def test_a_round_asks_for_logits_on_the_verified_rows_only() -> None:
    bench = Bench(FixedPolicy(Speculation(Mode.DRAFT, 3)))
    bench.target.widths.clear()
    events = bench.run()
    assert bench.target.widths == [event.proposed + 1 for event in events]


class TestNgramDrafter:
    """The look-up over the conversation itself."""

    def propose(self, kept: list[int], depth: int) -> list[int]:
        return [p.token for p in NgramDrafter().propose(kept, depth, Sampler(GREEDY)).proposals]

    def test_it_proposes_what_followed_the_last_occurrence(self) -> None:
        assert self.propose([5, 6, 7, 8, 9, 5, 6], 3) == [7, 8, 9]

    def test_a_longer_match_beats_a_more_recent_one(self) -> None:
        assert self.propose([1, 2, 3, 4, 50, 9, 3, 4, 60, 1, 2, 3, 4], 1) == [50]

    def test_among_equal_matches_the_most_recent_wins(self) -> None:
        assert self.propose([3, 4, 50, 9, 3, 4, 60, 8, 3, 4], 1) == [60]

    def test_a_repetition_is_followed_round_its_period(self) -> None:
        assert self.propose([1, 2, 3, 1, 2, 3, 1, 2], 7) == [3, 1, 2, 3, 1, 2, 3]

    def test_without_a_match_nothing_is_offered(self) -> None:
        assert NgramDrafter().offer([1, 2, 3, 4], 9) == Offer(0)
        assert self.propose([1, 2, 3, 4], 5) == []

    def test_another_conversation_leaves_nothing_of_the_last_one(self) -> None:
        drafter = NgramDrafter()
        list(drafter.read([1, 2, 3, 4, 1, 2]))
        assert drafter.offer([1, 2, 3, 4, 1, 2], 9).token == 3
        list(drafter.read([9, 1, 2, 5, 1, 2]))
        assert drafter.offer([9, 1, 2, 5, 1, 2], 9).token == 5

    @given(st.lists(st.integers(0, 3), min_size=3, max_size=60))
    @settings(max_examples=200, deadline=None)
    def test_the_incremental_index_finds_what_a_scan_finds(self, kept: list[int]) -> None:
        drafter = NgramDrafter()
        for end in range(1, len(kept) + 1):
            offer = drafter.offer(kept[:end], 9)
        assert offer.match == (longest_by_scan(kept) if longest_by_scan(kept) >= 2 else 0)

    @given(st.lists(st.integers(0, 3), min_size=3, max_size=60), st.integers(1, 40))
    @settings(max_examples=200, deadline=None)
    def test_nothing_is_proposed_after_the_end_of_a_message(self, kept: list[int], depth: int) -> None:
        drafter = NgramDrafter(lambda token: token == 0)
        list(drafter.read(kept))
        proposed = [p.token for p in drafter.propose(kept, depth, Sampler(GREEDY)).proposals]
        whole = self.propose(kept, depth)
        assert proposed == whole[: whole.index(0) + 1 if 0 in whole else depth]
        assert drafter.offer(kept, depth).room == len(proposed)


def longest_by_scan(kept: list[int]) -> int:
    """Longest earlier occurrence of a suffix, found by the largest order that matches, most recent first."""
    for order in NgramDrafter.ORDERS:
        suffix = kept[-order:]
        for at in range(len(kept) - 1, order - 1, -1):
            if len(kept) > order and kept[at - order : at] == suffix:
                length = order
                while length < min(at, NgramDrafter.LONGEST) and kept[at - length - 1] == kept[-length - 1]:
                    length += 1
                return length
    return 0


def test_a_choice_without_depth_is_plain() -> None:
    assert FixedPolicy(Speculation(Mode.OFF)).choose({"draft": Offer(4)}) == Choice("plain", 0, "switched off")


class Wild(FixedPolicy):
    """Any drafter at any depth, stopping and judging at random."""

    def __init__(self, chance: Random) -> None:
        super().__init__(Speculation())
        self._chance = chance

    def choose(self, offers: Mapping[str, Offer]) -> Choice:
        judge = "draft" in offers and self._chance.random() < 0.3
        if not offers or self._chance.random() < 0.4:
            return Choice("plain", 0, judge=judge)
        drafter = self._chance.choice(list(offers))
        depth = self._chance.randint(1, min(9, offers[drafter].room))
        return Choice(drafter, depth, worth=lambda _i, _confidence: self._chance.random() < 0.8, judge=judge)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_is_chosen_fails_or_is_cancelled_the_caches_hold_what_was_kept(seed: int) -> None:
    chance = Random(seed)
    target_vocabulary, draft_vocabulary = chance.choice([(8, 8), (8, 6), (6, 8)])
    target = ScriptedCache(from_table(pair_table(target_vocabulary, 1)), target_vocabulary, chance.randint(40, 200))
    draft = ScriptedCache(from_table(pair_table(draft_vocabulary, 2)), draft_vocabulary, chance.randint(20, 220))
    eog = target_vocabulary - 1
    drafters = all_drafters(draft, target_vocabulary, lambda token: token == eog)
    decoder = Decoder(target, drafters, Wild(chance), is_eog=lambda token: token == eog)
    kept = [chance.randrange(target_vocabulary) for _ in range(chance.randint(1, 30))]
    target.decode(kept[:-1], 0)

    def check() -> None:
        drafted = list(draft.tokens)
        assert list(target.tokens) == kept[:-1]
        assert drafted == [token if token < draft_vocabulary else 0 for token in kept[: len(drafted)]]

    faults = [(target, Cancelled()), (draft, Cancelled()), (draft, SpecchatError("no memory for a batch"))]
    for _ in range(4):
        if len(kept) > target.n_ctx:
            break
        penalty = chance.choice([1.0, 1.3])
        sampling = replace(WARM, temperature=chance.choice([0.0, 1.0]), repeat_penalty=penalty, seed=seed)
        before, limit = len(kept), chance.choice([None, chance.randint(1, 60)])
        with suppress(Cancelled):
            for event in decoder.run(kept, sampling, limit):
                kept += event.tokens
                check()
                assert eog not in event.tokens[:-1]
                assert event.accepted <= event.tested <= event.proposed
                if chance.random() < 0.05:
                    cache, fault = chance.choice(faults)
                    cache.interrupt = fault
        check()
        assert limit is None or len(kept) - before <= limit
        target.interrupt = draft.interrupt = None
