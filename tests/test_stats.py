"""The figures are what anyone would compute from the rounds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specchat.engine.rounds import Origin, Round
from specchat.engine.stats import (
    FEWEST_COMPARED,
    LEAST_TESTED,
    RECENT_SECONDS,
    Figures,
    Prompt,
    Stats,
    expected_tokens_per_pass,
)

PROMPT = Prompt(tokens=100, reused=40, seconds=0.5, context_size=4096)


def a_round(proposed: int, accepted: int, seconds: float, used: int = 0) -> Round:
    return Round(
        tokens=(7,) * (accepted + 1),
        origins=(Origin.ACCEPTED,) * accepted + (Origin.BONUS,),
        drafter="draft" if proposed else "plain",
        proposed=proposed,
        tested=min(accepted + 1, proposed),
        accepted=accepted,
        draft_seconds=seconds / 3,
        target_seconds=seconds / 3,
        total_seconds=seconds,
        context_used=used,
    )


rounds = st.lists(
    st.integers(0, 6).flatmap(
        lambda proposed: st.builds(
            a_round, st.just(proposed), st.integers(0, proposed), st.floats(0.01, 0.9), st.integers(1, 4000)
        )
    ),
    min_size=1,
    max_size=30,
)


def figures_of(events: list[Round], plain_seconds: float | None = None) -> Figures:
    stats = Stats(PROMPT)
    return [stats.add(event, plain_seconds) for event in events][-1]


@pytest.mark.parametrize("finish", ["length", "context"])
def test_the_one_token_that_a_limit_had_room_for_tells_nothing_of_the_choice(finish: str) -> None:
    last = replace(a_round(0, 0, 0.1), reason="nothing to propose here", finish=finish)
    for proposed, reason in ((3, "3.1 tokens expected for the time of 2.0 passes"), (0, "drafting 3 costs too much")):
        before = replace(a_round(proposed, proposed, 0.1), reason=reason)
        figures = figures_of([before, last])
        assert (figures.drafter, figures.depth, figures.reason) == (before.drafter, proposed, reason)
        assert (figures.tokens, figures.passes) == (proposed + 2, 2)
    assert figures_of([last]).reason == last.reason  # there is no other
    whole = replace(a_round(3, 3, 0.1), reason="as deep as it goes", finish=finish)
    assert figures_of([before, whole]).depth == 3


@given(rounds)
@settings(deadline=None)
def test_the_figures_equal_those_recomputed_from_the_rounds(events: list[Round]) -> None:
    figures = figures_of(events, plain_seconds=0.125)
    tokens, seconds = sum(len(e.tokens) for e in events), sum(e.total_seconds for e in events)
    tested, accepted = sum(e.tested for e in events), sum(e.accepted for e in events)
    assert figures.tokens == tokens
    assert figures.passes == len(events)
    assert (figures.tested, figures.accepted) == (tested, accepted)
    assert figures.acceptance == (pytest.approx(accepted / tested) if tested else None)
    assert figures.tokens_per_second == pytest.approx(tokens / seconds)
    assert figures.tokens_per_pass == pytest.approx(tokens / len(events))
    assert figures.depth == events[-1].proposed
    assert figures.context_used == events[-1].context_used
    assert figures.time_to_first_token == pytest.approx(PROMPT.seconds + events[0].total_seconds)
    assert figures.prompt_tokens_per_second == pytest.approx(60 / 0.5)
    now = figures.tokens_per_second_now
    assert now is not None
    # Plain over plain measured a moment ago is only noise.
    proposed = any(e.proposed for e in events)
    per_pass_now = figures.tokens_per_pass_now or 0.0
    assert figures.speed_up is None or figures.speed_up == pytest.approx(min(now * 0.125, per_pass_now))
    assert figures.speed_up is None or proposed
    enough = bool(proposed) and tokens >= FEWEST_COMPARED and tested >= LEAST_TESTED * len(events)
    assert figures.speed_up is None or enough
    average = min(tokens / seconds * 0.125, tokens / len(events))
    assert figures.average_speed_up == (pytest.approx(average) if enough else None)
    if tested and accepted < tested:
        a = accepted / tested
        assert figures.ceiling == pytest.approx(1 / (1 - a))
        theory = sum(expected_tokens_per_pass(a, e.proposed) for e in events) / len(events)
        assert figures.expected_per_pass == pytest.approx(theory)


def test_proposals_after_a_rejection_do_not_count_against_the_draft() -> None:
    assert figures_of([a_round(proposed=4, accepted=0, seconds=0.1)]).tested == 1
    assert figures_of([a_round(proposed=4, accepted=2, seconds=0.1)]).acceptance == pytest.approx(2 / 3)


def test_now_means_the_last_two_seconds() -> None:
    slow, fast = a_round(0, 0, seconds=0.5), a_round(3, 3, seconds=0.1)
    figures = figures_of([slow] * 20 + [fast] * 25)
    assert figures.tokens_per_second_now == pytest.approx(40.0, rel=0.01)
    assert figures.tokens_per_second is not None
    assert figures.tokens_per_second < 20
    assert RECENT_SECONDS == 2.0


def test_every_live_figure_is_over_the_same_window() -> None:
    hopeless, perfect = a_round(3, 0, seconds=0.5), a_round(3, 3, seconds=0.1)
    figures = figures_of([hopeless] * 20 + [perfect] * 25)
    assert (figures.acceptance_now, figures.tokens_per_pass_now) == (1.0, 4.0)
    assert figures.acceptance == pytest.approx((25 * 3) / (20 + 25 * 3))
    assert figures.tokens_per_pass == pytest.approx((20 + 25 * 4) / 45)
    plain = figures_of([perfect] * 5 + [a_round(0, 0, seconds=0.1)] * 25)
    assert (plain.acceptance_now, plain.tokens_per_pass_now) == (None, 1.0)
    assert plain.acceptance == 1.0


def test_no_speed_up_is_more_than_its_passes_explain() -> None:
    figures = figures_of([a_round(1, 1, 0.1)] * 40, plain_seconds=1.0)  # plain was measured at a busy moment
    assert (figures.speed_up, figures.average_speed_up) == (2.0, 2.0)


def test_without_a_plain_figure_there_is_no_speed_up() -> None:
    figures = figures_of([a_round(2, 1, 0.1)])
    assert (figures.speed_up, figures.average_speed_up) == (None, None)


@pytest.mark.parametrize(("drafted", "says"), [(0, False), (1, False), (5, False), (10, True), (100, True)])
@pytest.mark.parametrize("accepted", [0, 1])
def test_an_almost_wholly_plain_reply_says_nothing_of_a_speed_up(drafted: int, accepted: int, says: bool) -> None:
    # Spread evenly, so that the last two seconds (20 rounds) are as the whole.
    drafts = [(n + 1) * drafted // 100 - n * drafted // 100 for n in range(100)]
    figures = figures_of([a_round(depth, accepted * depth, 0.1) for depth in drafts], plain_seconds=0.136)
    assert (figures.average_speed_up is not None) is says
    assert (figures.speed_up is not None) is says
    assert figures.is_compared is (drafted > 0)  # the reader sees a dash, not nothing


def test_no_more_of_the_context_is_used_than_there_is() -> None:
    last = a_round(0, 0, 0.1, used=PROMPT.context_size + 1)
    assert figures_of([last]).context_used == PROMPT.context_size


def test_without_proposals_there_is_no_acceptance() -> None:
    figures = figures_of([a_round(0, 0, 0.1)])
    assert (figures.acceptance, figures.expected_per_pass, figures.ceiling) == (None, None, None)


def test_a_prompt_that_was_in_the_cache_has_no_reading_speed() -> None:
    stats = Stats(Prompt(tokens=40, reused=40, seconds=0.01, context_size=4096))
    assert stats.add(a_round(0, 0, 0.1)).prompt_tokens_per_second is None
