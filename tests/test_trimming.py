"""Conversations that outgrow their context: what is left out, when, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specchat.engine import trimming
from specchat.engine.chat import Engine
from specchat.engine.llama import Context, Model
from specchat.engine.policy import FixedPolicy, Mode, Speculation
from specchat.engine.replies import Event, Finished, Generated, Message, Notice, PromptTooLong, Reading, ReplyOptions
from specchat.engine.sampling import SamplingSettings
from specchat.session import Launch, Session
from specchat.worker.client import TooLong
from specchat.worker.protocol import LoadSettings
from tests import ggufs
from tests.conftest import DemoPair
from tests.ggufs import bpe

SYSTEM = Message("system", "be brief")
N_CTX = 512
GREEDY = SamplingSettings(temperature=0.0)


# ---- the rule


def first_that_fits(sizes: list[int], room: int) -> int:
    """What the engine takes where templates add nothing."""
    return next(
        (cut for cut in trimming.cuts(sizes, room) if sum(sizes[cut:]) <= room or cut == len(sizes) - 1),
    )


def test_turns_begin_with_a_user() -> None:
    a, b, c, d = (Message("user", "a"), Message("assistant", "b"), Message("user", "c"), Message("user", "d"))
    assert trimming.split([SYSTEM, a, b, c, d]) == ((SYSTEM,), [(a, b), (c,), (d,)])
    assert trimming.split([a, b]) == ((), [(a, b)])
    assert trimming.split([b, a]) == ((), [(b,), (a,)])
    assert trimming.split([SYSTEM]) == ((SYSTEM,), [])
    assert trimming.split([]) == ((), [])


def test_room_for_a_reply_is_kept() -> None:
    assert trimming.room(8192, None) == 8192 - 2048
    assert trimming.room(1024, None) == 768
    assert trimming.room(8192, 100) == 8092
    assert trimming.room(8192, 5000) == 8192 - 2048


@given(st.lists(st.integers(1, 400), min_size=1, max_size=60))
def test_a_conversation_that_grows_is_cut_seldom_and_never_more_than_half(sizes: list[int]) -> None:
    room = 1000
    held = [first_that_fits(sizes[: n + 1], room) for n in range(len(sizes))]
    for n, cut in enumerate(held):
        kept = sum(sizes[cut : n + 1])
        assert kept <= room
        if cut:
            # At most half the room and a turn are left out beyond what is needed.
            assert kept > room / 2 - 2 * max(sizes)
    assert held == sorted(held)
    moves = [n for (_, a), (n, b) in pairwise(enumerate(held)) if b > a]
    for one, other in pairwise(moves):
        assert sum(sizes[one : other + 1]) > room / 2 - 2 * max(sizes)


@given(st.lists(st.integers(0, 3000), max_size=30))
def test_the_last_turn_stays_whatever_its_size(sizes: list[int]) -> None:
    cuts = list(trimming.cuts(sizes, 1000))
    assert cuts[-1] == max(0, len(sizes) - 1)
    assert cuts == sorted(set(cuts))


def test_a_long_text_and_the_question_after_it_stay_together() -> None:
    # The long one begins just before a multiple of half the room, or just after.
    for before in (499, 500, 501):
        assert first_that_fits([before, 900, 50], 1000) == 1


# ---- in an engine


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    # Every byte is a token.
    path = ggufs.write(tmp_path_factory.mktemp("models") / "target.gguf", bpe(words=("qj",)))
    with Model.load(path) as model:
        policy = FixedPolicy(Speculation(Mode.OFF))
        yield Engine(model, Context(model, n_ctx=N_CTX, threads=1), None, None, policy)


def turns(n: int, words: str = "some words about it") -> list[Message]:
    """`n` questions with their answers, and one more question."""
    both = [[Message("user", f"{i} {words}"), Message("assistant", f"{words} {i}")] for i in range(n)]
    return [*(message for turn in both for message in turn), Message("user", "last")]


def reply(engine: Engine, messages: list[Message], n: int = 4) -> list[Event]:
    return list(engine.reply(messages, ReplyOptions(GREEDY, max_tokens=n)))


def notices(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Notice)]


def prompt_text(engine: Engine, messages: list[Message]) -> str:
    tokens = engine.prompt_tokens(messages, ReplyOptions(GREEDY))
    return (
        "".join(engine.target_context.model.token_text(token) for token in tokens).replace("Ġ", " ").replace("Ċ", "\n")
    )


def test_the_oldest_turns_are_left_out_whole_and_never_the_system_prompt(engine: Engine) -> None:
    text = prompt_text(engine, [SYSTEM, *turns(40)])
    assert "be brief" in text
    assert "39 some words" in text
    assert "last" in text
    assert " 0 some" not in text
    kept = [i for i in range(40) if f"user\n{i} some" in text or f"about it {i}<" in text]
    assert kept == list(range(kept[0], 40))
    assert text.count("user") == len(kept) + 1
    assert text.count("assistant") == len(kept) + 1


def test_a_reply_still_has_its_room(engine: Engine) -> None:
    for n in range(1, 30):
        assert len(engine.prompt_tokens(turns(n), ReplyOptions(GREEDY))) <= N_CTX * 3 // 4


def test_it_is_said_once_with_numbers_and_again_when_more_is_left_out(engine: Engine) -> None:
    said = {}
    for n in range(1, 40):
        if found := notices(reply(engine, turns(n))):
            said[n] = found
    cut = [int(text.split()[1]) for (text,) in said.values()]
    assert cut == sorted(set(cut))
    assert len(said) < 12
    first = next(iter(said.values()))[0]
    assert first == f"the {cut[0]} oldest turns no longer fit in {N_CTX} tokens and are left out"
    assert notices(reply(engine, turns(1))) == []
    assert notices(reply(engine, turns(39))) != []  # back from another conversation


def test_most_turns_after_a_cut_reuse_the_cache(engine: Engine) -> None:
    reply(engine, turns(11))
    anew = 0
    for n in range(12, 40):
        readings = [event for event in reply(engine, turns(n)) if isinstance(event, Reading)]
        anew += readings[0].reused < 40
    assert anew <= 28 * 2 * 55 / (N_CTX * 3 / 4) + 2


def test_a_message_that_is_too_long_alone_is_refused_with_both_numbers(engine: Engine) -> None:
    reply(engine, turns(3))
    before = list(engine.target_context.tokens)
    messages = [SYSTEM, *turns(30)[:-1], Message("user", "x" * 600)]
    n = len(engine.prompt_tokens(messages, ReplyOptions(GREEDY)))
    with pytest.raises(PromptTooLong, match=f"this message alone has {n} tokens and the context {N_CTX}"):
        reply(engine, messages)
    assert list(engine.target_context.tokens) == before
    assert isinstance(reply(engine, turns(3))[-1], Finished)


def test_a_reply_that_the_context_cut_short_goes_on_with_fewer_turns_before_it(engine: Engine) -> None:
    partial = [*turns(8), Message("assistant", "y" * 100)]
    options = ReplyOptions(GREEDY, max_tokens=3, continue_last=True)
    events = list(engine.reply(partial, options))
    assert notices(events)
    assert isinstance(events[-1], Finished)
    whole = [*turns(1), Message("assistant", "y" * 600)]
    with pytest.raises(PromptTooLong, match="the reply with its message has"):
        list(engine.reply(whole, options))


def test_a_session_loses_nothing_over_a_message_that_is_too_long(tmp_path: Path) -> None:
    target = ggufs.write(tmp_path / "target.gguf", bpe(words=("qj",)))
    launch = Launch("tiny", target, settings=LoadSettings(n_ctx=256, threads=1), options=ReplyOptions(GREEDY, 8))
    session = Session(launch)
    try:
        list(session.send("hello"))
        before = session.messages
        assert len(before) == 2
        with pytest.raises(TooLong, match=r"this message alone has [\d,]+ tokens and the context 256") as raised:
            list(session.send("x" * 300))
        assert raised.value.option == "-c"  # for the command line, which alone says it
        assert "-c" not in str(raised.value)
        assert session.messages == before
        for i in range(6):
            events = list(session.send(f"{i} and some more words"))
            assert isinstance(events[-1], Finished)
        assert len(session.messages) == 14  # what is left out of the prompt stays in the history
    finally:
        session.close()


# ---- with real weights


def test_the_real_model_talks_on_past_its_context(demo_pair: DemoPair) -> None:
    model = Model.load(demo_pair.target)
    engine = Engine(model, Context(model, n_ctx=512, threads=1), None, None, FixedPolicy(Speculation(Mode.NGRAM, 6)))
    messages = [Message("system", "You answer in one short sentence.")]
    said: list[str] = []
    try:
        for i in range(14):
            messages.append(Message("user", f"Name a thing that is {i + 3} metres long, and say why."))
            events = list(engine.reply(messages, ReplyOptions(GREEDY, max_tokens=40)))
            assert isinstance(events[-1], Finished)
            assert events[-1].reason in ("end", "length")
            assert events[-1].figures.context_used <= 512
            pieces = [piece.text for event in events if isinstance(event, Generated) for piece in event.pieces]
            assert "".join(pieces).strip()
            messages.append(Message("assistant", "".join(pieces)))
            said += notices(events)
    finally:
        engine.close()
    assert 1 <= len(said) <= 4
    assert "oldest turn" in said[0]


def test_the_same_text_as_from_a_conversation_that_began_there(demo_pair: DemoPair) -> None:
    model = Model.load(demo_pair.target)
    engine = Engine(model, Context(model, n_ctx=256, threads=1), None, None, FixedPolicy(Speculation(Mode.OFF)))
    try:
        long, options = turns(20, "words about the sea"), ReplyOptions(GREEDY, max_tokens=20)
        tokens = engine.prompt_tokens(long, options)
        began = next(n for n in range(1, len(long)) if engine.prompt_tokens(long[n:], options) == tokens)
        texts = []
        for messages in (long, long[began:]):
            events = list(engine.reply(messages, options))
            texts.append([event.round.tokens for event in events if isinstance(event, Generated)])
    finally:
        engine.close()
    assert texts[0] == texts[1]
