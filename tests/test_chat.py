"""A reply from messages to pieces: real tokenizer, template and decoder; the words themselves are scripted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from specchat.engine.acceptance import Learned
from specchat.engine.cache import Cancelled
from specchat.engine.chat import Engine
from specchat.engine.costs import Costs
from specchat.engine.drafters import STILL_READING, ModelDrafter
from specchat.engine.llama import Context, Model, ModelError
from specchat.engine.policy import AdaptivePolicy, FixedPolicy, Mode, Speculation
from specchat.engine.replies import Event, Finished, Generated, Message, Notice, PromptTooLong, Reading, ReplyOptions
from specchat.engine.sampling import SamplingSettings
from specchat.engine.stats import Prompt, Stats
from tests import ggufs
from tests.conftest import DemoPair
from tests.ggufs import Shape, bpe
from tests.scripted_models import ScriptedCache

GREEDY = SamplingSettings(temperature=0.0)
QUESTION = (Message("user", "hello"),)
PLAIN = Speculation(Mode.OFF)
# Every way to write: plain, and each drafter at depths that divide a reply differently.
WAYS = [PLAIN, *(Speculation(mode, depth) for mode in (Mode.DRAFT, Mode.NGRAM) for depth in (1, 2, 3, 5))]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    # All bytes but one pair are tokens of their own, so that positions in a text are positions in a cache.
    path = ggufs.write(tmp_path_factory.mktemp("models") / "target.gguf", bpe(words=("qj",)))
    with Model.load(path, vocab_only=True) as model:
        yield model


class ScriptedContext(ScriptedCache):
    """A `Context` that goes on from any prompt with the same reply, and from anything else with question marks."""

    def __init__(
        self, model: Model, reply: str, n_ctx: int = 512, *, wrong_at: int = -1, can_roll_back: bool = True
    ) -> None:
        super().__init__(self._next, model.n_vocab, n_ctx, can_roll_back=can_roll_back)
        self.model = model
        self.reply = [*model.tokenize(reply), model.eos or 0]
        self.prompt = 0  # tokens before the reply
        self.n_batch = 16
        self.rollback_limit = None if can_roll_back else 0
        self.delay = 0.0  # seconds that a pass takes
        self.interrupt_at = -1  # cancel when the cache would grow to so many tokens
        self.fails_at_logits = False  # it can read, but not propose
        self._wrong_at = wrong_at  # where a draft errs
        self._question_mark = model.tokenize("?")[0]

    def _next(self, tokens: Sequence[int]) -> NDArray[np.float64]:
        so_far = list(tokens[self.prompt :])
        at = len(so_far)
        known = so_far == self.reply[:at] and at < len(self.reply) and at != self._wrong_at
        probabilities = np.zeros(self.n_vocab)
        probabilities[self.reply[at] if known else self._question_mark] = 1.0
        return probabilities

    def decode(self, tokens: Sequence[int], n_logits: int) -> NDArray[np.float32]:
        if 0 <= self.interrupt_at <= len(self.tokens) + len(tokens):
            self.interrupt_at = -1
            raise Cancelled
        if self.fails_at_logits and n_logits:
            raise ModelError("no more memory")
        time.sleep(self.delay)
        return super().decode(tokens, n_logits)


class Scripted:
    """An engine over scripted contexts."""

    def __init__(
        self,
        model: Model,
        reply: str,
        *,
        n_ctx: int = 512,
        draft_ctx: int = 512,
        wrong_at: int = 4,
        can_roll_back: bool = True,
        speculation: Speculation = PLAIN,
        context: type[ScriptedContext] | None = None,
    ) -> None:
        self.model = model
        self.target = (context or ScriptedContext)(model, reply, n_ctx, can_roll_back=can_roll_back)
        self.draft = ScriptedContext(model, reply, draft_ctx, wrong_at=wrong_at)
        self.engine = Engine(
            model, cast(Context, self.target), None, cast(Context, self.draft), FixedPolicy(speculation)
        )
        self.events: list[Event] = []

    def ask(
        self,
        messages: Sequence[Message] = QUESTION,
        *,
        stop: tuple[str, ...] = (),
        max_tokens: int | None = None,
        continue_last: bool = False,
    ) -> str:
        """The reply's text; leaves its events and the prompt behind."""
        asked = ReplyOptions(GREEDY, max_tokens, stop, continue_last=continue_last)
        self.prompt = self.engine.prompt_tokens(messages, asked)
        self.target.prompt = self.draft.prompt = len(self.prompt)
        self.events = list(self.engine.reply(messages, asked))
        return text(self.events)

    def cached(self) -> str:
        """What the target's cache holds after the prompt."""
        tokens = self.target.tokens
        assert list(tokens[: len(self.prompt)]) == self.prompt[: len(tokens)]
        return b"".join(map(self.model.piece, tokens[len(self.prompt) :])).decode()

    @property
    def finished(self) -> Finished:
        event = self.events[-1]
        assert isinstance(event, Finished)
        return event

    @property
    def rounds(self) -> list[Generated]:
        return [event for event in self.events if isinstance(event, Generated)]

    def readings(self) -> list[Reading]:
        return [event for event in self.events if isinstance(event, Reading)]


def text(events: Sequence[Event], *, reasoning: bool = False) -> str:
    pieces = [piece for event in events if isinstance(event, Generated | Finished) for piece in event.pieces]
    return "".join(piece.text for piece in pieces if piece.reasoning == reasoning)


# ---- the text, whichever way it is written

REPLY = "one two, one two: né 🙂€ one two, one two!"


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_reply_is_the_targets_and_the_cache_holds_it(model: Model, way: Speculation) -> None:
    chat = Scripted(model, REPLY, speculation=way)

    assert chat.ask() == REPLY
    assert chat.finished.reason == "end"
    assert chat.cached() == REPLY  # the end token is the last kept one, and that is not in the cache
    assert all("\ufffd" not in piece.text for event in chat.rounds for piece in event.pieces)
    assert list(chat.draft.tokens) == list(chat.target.tokens)[: len(chat.draft.tokens)]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("stop", ["one", " one", "wo, on", "né", "é", "🙂", "🙂€", "two!", "!", "o", "two: n"])
def test_a_stop_string_trims_text_and_caches_alike(model: Model, way: Speculation, stop: str) -> None:
    chat = Scripted(model, REPLY, speculation=way)
    expected = REPLY[: REPLY.index(stop)]

    assert chat.ask(stop=(stop,)) == expected
    assert chat.finished.reason == "stop"
    # The last token that was drawn may not be in the cache yet.
    assert chat.cached() in (expected, expected[:-1])
    assert len(chat.draft.tokens) <= len(chat.prompt) + len(expected.encode())
    assert chat.rounds[-1].round.context_used == len(chat.prompt) + len(expected.encode())


def test_a_stop_string_inside_a_token_drops_the_token_and_keeps_its_beginning(tmp_path: Path) -> None:
    vocabulary = bpe(words=("he", "ll", "hell"))
    with Model.load(ggufs.write(tmp_path / "words.gguf", vocabulary), vocab_only=True) as model:
        chat = Scripted(model, "a hell b")

        assert chat.ask(stop=("ll b",)) == "a he"
        assert chat.cached() == "a "


def test_a_stop_string_that_does_not_come_is_given_out_in_the_end(model: Model) -> None:
    chat = Scripted(model, "one two")

    assert chat.ask(stop=("two!",)) == "one two"
    assert "".join(piece.text for piece in chat.finished.pieces) == "two"
    assert chat.finished.reason == "end"


def test_tokens_dropped_by_a_stop_string_are_not_in_the_round(model: Model) -> None:
    chat = Scripted(model, "_abcdefgh", wrong_at=-1, speculation=Speculation(Mode.DRAFT, 5))
    chat.ask(stop=("cd",))

    last = chat.rounds[-1].round
    assert [model.piece(token) for token in last.tokens] == [b"a", b"b"]
    assert len(last.origins) == 2


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("limit", [1, 2, 7, 8])
def test_max_tokens_is_exact(model: Model, way: Speculation, limit: int) -> None:
    chat = Scripted(model, "abcabcabcabc", speculation=way)

    assert chat.ask(max_tokens=limit) == "abcabcabcabc"[:limit]
    assert chat.finished.reason == "length"
    assert chat.finished.figures.tokens == limit


def test_no_tokens_wanted_none_written(model: Model) -> None:
    chat = Scripted(model, "abc")

    assert chat.ask(max_tokens=0) == ""
    assert chat.finished.reason == "length"


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_full_context_ends_the_reply_and_says_so(model: Model, way: Speculation) -> None:
    room = 9
    n_ctx = len(Scripted(model, "").engine.prompt_tokens(QUESTION, ReplyOptions())) + room
    chat = Scripted(model, "abcabcabcabcabc", n_ctx=n_ctx, speculation=way)

    assert chat.ask() == "abcabcabcabcabc"[: room + 1]  # the last token needs no cell
    assert chat.finished.reason == "context"


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_figures_are_those_of_the_rounds(model: Model, way: Speculation) -> None:
    chat = Scripted(model, REPLY, speculation=way)
    chat.ask()

    first = chat.rounds[0].figures
    assert first.time_to_first_token is not None
    seconds = first.time_to_first_token - chat.rounds[0].round.total_seconds
    stats = Stats(Prompt(len(chat.prompt), 0, seconds, 512))
    again = [stats.add(event.round) for event in chat.rounds]
    assert [event.figures.tokens for event in chat.rounds] == [figures.tokens for figures in again]
    assert chat.finished.figures == chat.rounds[-1].figures
    assert again[-1].acceptance == chat.finished.figures.acceptance
    assert chat.finished.figures.prompt_tokens == len(chat.prompt)


# ---- reading


def test_reading_a_long_prompt_shows_progress(model: Model) -> None:
    chat = Scripted(model, "ok")
    chat.ask([Message("user", "hello " * 20)])

    unread = len(chat.prompt) - 1
    steps = [reading.done for reading in chat.readings()]
    assert steps == [*range(0, unread, 16), unread]
    assert {(reading.total, reading.reused) for reading in chat.readings()} == {(unread, 0)}
    assert chat.target.widths[: len(steps) - 1] == [b - a for a, b in pairwise(steps)]


def test_the_next_turn_reads_only_what_is_new(model: Model) -> None:
    chat = Scripted(model, "ok")
    chat.ask()
    before = list(chat.target.tokens)
    chat.ask([*QUESTION, Message("assistant", "ok"), Message("user", "more")])

    assert chat.prompt[: len(before)] == before
    assert {reading.reused for reading in chat.readings()} == {len(before)}
    assert chat.finished.figures.prompt_reused == len(before)


def test_an_edited_conversation_keeps_what_it_shares(model: Model) -> None:
    chat = Scripted(model, "ok")
    chat.ask([Message("user", "hello there")])
    chat.ask([Message("user", "hello again")])

    assert 0 < chat.readings()[0].reused < len(chat.prompt) - 5
    assert chat.cached() == "ok"


def test_the_same_question_again_reads_nothing(model: Model) -> None:
    chat = Scripted(model, "ok")
    chat.ask()
    chat.ask()

    assert chat.readings() == []
    assert text(chat.events) == "ok"


def test_the_draft_reads_the_prompt_when_the_first_token_is_out(model: Model) -> None:
    chat = Scripted(model, "abcabcabc", speculation=Speculation(Mode.DRAFT, 2))
    messages = [Message("user", "hello there " * 20)]
    chat.draft.delay = 0.01  # longer than a pass of the target: one batch a round
    with closing(chat.engine.reply(messages, ReplyOptions(GREEDY))) as events:
        next(event for event in events if isinstance(event, Generated))
        assert len(chat.draft.tokens) == 0
        later = [event.round for event in events if isinstance(event, Generated)]

    assert later[0].reason == STILL_READING
    assert [event.drafter for event in later][-2:] == ["draft", "draft"]
    prompt = chat.engine.prompt_tokens(messages, ReplyOptions(GREEDY))
    assert list(chat.draft.tokens[: len(prompt)]) == prompt


def test_a_draft_that_has_read_everything_costs_no_round_a_question(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    def wants(_policy: FixedPolicy, _drafter: str, _unread: int = 1, /) -> bool:
        nonlocal asked
        asked += 1
        return True

    monkeypatch.setattr(FixedPolicy, "wants", wants)
    counts = []
    for reply in ("abcabc", "abcabc" * 5):
        asked = 0
        chat = Scripted(model, reply, speculation=Speculation(Mode.DRAFT, 2))
        assert chat.ask() == reply
        counts.append(asked)
    assert counts[0] == counts[1] > 0


def test_the_time_a_draft_read_counts(model: Model) -> None:
    chat = Scripted(model, "abcabcabc", speculation=Speculation(Mode.DRAFT, 2))
    chat.draft.delay = 0.02
    chat.ask()

    assert chat.rounds[1].round.draft_seconds >= 0.02
    assert chat.finished.figures.seconds == pytest.approx(sum(event.round.total_seconds for event in chat.rounds))


def test_where_ways_are_compared_the_draft_reads_first_and_off_the_clock(model: Model) -> None:
    chat = Scripted(model, "abcabcabc", speculation=Speculation(Mode.DRAFT, 2))
    chat.draft.delay = 0.05
    messages = [Message("user", "hello there " * 40)]
    options = ReplyOptions(GREEDY, draft_first=True)
    chat.target.prompt = chat.draft.prompt = len(chat.engine.prompt_tokens(messages, options))
    rounds = [event.round for event in chat.engine.reply(messages, options) if isinstance(event, Generated)]

    reading = 0.05 * len([width for width in chat.draft.widths if width > 2])
    assert rounds[0].drafter == "draft"
    assert rounds[0].draft_seconds < reading


def test_nothing_is_read_for_a_draft_while_it_is_switched_off(model: Model) -> None:
    chat = Scripted(model, "abcabcabcabc", speculation=Speculation(Mode.DRAFT, 2))
    messages = [Message("user", "hello there " * 20)]
    chat.draft.delay = 0.01  # longer than a pass of the target: one batch a round
    seen: list[tuple[str, int]] = []
    for event in chat.engine.reply(messages, ReplyOptions(GREEDY)):
        if isinstance(event, Generated):
            seen.append((event.round.reason, len(chat.draft.tokens)))
            on = len(seen) not in (3, 4)
            chat.engine.speculation = Speculation(Mode.DRAFT, 2) if on else PLAIN

    reading = STILL_READING
    assert [reason == reading for reason, _ in seen[1:5]] == [True, True, False, False]
    assert seen[2][1] == seen[4][1] > 0
    assert len(chat.draft.tokens) > seen[4][1]  # and goes on when it is wanted again


def test_a_draft_reads_nothing_while_copying_pays(model: Model) -> None:
    speculation = Speculation(Mode.AUTO)
    chat = Scripted(model, "ab" + "hello there " * 10 + "abc", n_ctx=4096, draft_ctx=4096, speculation=speculation)
    chat.draft.delay = 0.01  # longer than a pass of the target: one batch a round
    messages = [Message("user", "hello there " * 100)]
    chat.target.prompt = chat.draft.prompt = len(chat.engine.prompt_tokens(messages, ReplyOptions(GREEDY)))
    events = chat.engine.reply(messages, ReplyOptions(GREEDY))
    seen = [(event.round.drafter, len(chat.draft.tokens)) for event in events if isinstance(event, Generated)]

    read_after: dict[str, list[int]] = {}
    for (drafter, before), (_, now) in pairwise(seen):
        read_after.setdefault(drafter, []).append(now - before)
    assert read_after["ngram"]
    assert not any(read_after["ngram"])
    assert any(read_after["plain"])


@pytest.mark.parametrize(("more", "reads"), [(30, False), (400, True)])
def test_a_draft_that_waited_while_copying_paid_is_not_read_for_the_last_tokens(
    model: Model, more: int, reads: bool
) -> None:
    letters = np.random.default_rng(1).choice(list("abcdefghijklmnopqrstuvwxyz"), 500 + more)
    copied, rest = "".join(letters[:500]), "".join(letters[500:])
    chat = Scripted(model, copied + rest, n_ctx=4096, draft_ctx=4096)
    dear_to_read = Costs({1: 1.0, 32: 1.5}, {1: 0.01, 64: 4.0}, measured=True)
    chat.engine._policy = AdaptivePolicy(Speculation(), dear_to_read, Learned(0.95))
    chat.engine._policy.disturbed = True  # what passes really cost here is another matter
    chat.draft.delay = 0.01  # longer than a pass of the target: one batch a round
    messages, options = [Message("user", copied)], ReplyOptions(GREEDY, max_tokens=500 + more)
    prompt = len(chat.engine.prompt_tokens(messages, options))
    chat.target.prompt = chat.draft.prompt = prompt
    read: dict[int, int] = {}
    reasons: dict[int, str] = {}
    for event in chat.engine.reply(messages, options):
        if isinstance(event, Generated):
            place = event.round.context_used - prompt
            read[place] = len(chat.draft.tokens)
            reasons[place] = event.round.reason if event.round.drafter == "plain" else ""
    waited = read[max(place for place in read if place <= 500)]
    assert 0 < waited < prompt - 1
    assert (read[max(read)] > waited) == reads
    # (After the first round that copies nothing it turns out that the draft is not worth it any more.)
    later = [reason for place, reason in reasons.items() if 502 < place < 500 + more and reason]
    assert later
    assert (STILL_READING in later) == reads
    assert any("missed cost more" in reason for reason in later) != reads


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_switched_in_mid_reply_the_text_is_the_targets_and_the_draft_holds_a_prefix(
    model: Model, seed: int
) -> None:
    chance = np.random.default_rng(seed)
    asked = "".join(chance.choice(list("abcdef"), 300))
    reply = asked[:150] + "".join(chance.choice(list("abcdef"), 100))
    chat = Scripted(model, reply, n_ctx=4096, draft_ctx=int(chance.integers(300, 700)))
    costs = Costs({1: 1.0, 32: 1.5}, {1: 0.01, 64: float(chance.choice([0.1, 4.0]))}, measured=True)
    policy = chat.engine._policy = AdaptivePolicy(Speculation(), costs, Learned(0.9))
    policy.disturbed = True  # what passes really cost here is another matter
    messages, options = [Message("user", asked)], ReplyOptions(GREEDY, max_tokens=int(chance.integers(2, 300)))
    prompt = chat.engine.prompt_tokens(messages, options)
    chat.target.prompt = chat.draft.prompt = len(prompt)
    whole, written = [*prompt, *chat.target.reply], 0
    for event in chat.engine.reply(messages, options):
        if isinstance(event, Generated):
            written += len(event.round.tokens)
            assert list(chat.target.tokens) == whole[: len(prompt) + written - 1]
            assert list(chat.draft.tokens) == whole[: len(chat.draft.tokens)]
            assert len(chat.draft.tokens) < len(prompt) + written
            if chance.random() < 0.2:
                depth = int(chance.integers(1, 9)) if chance.random() < 0.4 else None
                chat.engine.speculation = Speculation(Mode(chance.choice(list(Mode))), depth)
    assert written == min(options.max_tokens or 0, len(chat.target.reply))


@pytest.mark.parametrize("limit", [None, 1, 2, 100, 10_000])
def test_the_policy_knows_how_many_tokens_a_reply_can_have(model: Model, limit: int | None) -> None:
    chat = Scripted(model, "ab" * 1000)
    known: list[int | None] = []
    begin = chat.engine._policy.begin

    def noted(temperature: float, deepest: int | None = None, tokens: int | None = None) -> None:
        known.append(tokens)
        begin(temperature, deepest, tokens)

    chat.engine._policy.begin = noted  # type: ignore[method-assign]
    chat.ask(max_tokens=limit)
    assert known == [chat.finished.figures.tokens]


def test_a_draft_that_is_switched_on_in_mid_reply_reads_along(model: Model) -> None:
    chat = Scripted(model, "abcabcabcabcabc")
    messages = [Message("user", "hello there " * 20)]
    chat.draft.delay = 0.01
    chat.target.prompt = chat.draft.prompt = len(chat.engine.prompt_tokens(messages, ReplyOptions(GREEDY)))
    events = []
    for event in chat.engine.reply(messages, ReplyOptions(GREEDY)):
        if isinstance(event, Generated):
            events.append(event.round)
            chat.engine.speculation = Speculation(Mode.DRAFT, 2)

    assert max(chat.draft.widths) <= ModelDrafter.BATCH
    assert [event.drafter for event in events][:3] == ["plain"] * 3
    assert events[1].reason == STILL_READING
    assert "draft" in {event.drafter for event in events}
    assert [token for event in events for token in event.tokens] == chat.target.reply


def test_a_reply_that_is_abandoned_while_the_draft_reads_leaves_a_prefix(model: Model) -> None:
    chat = Scripted(model, "abcabcabc", speculation=Speculation(Mode.DRAFT, 2))
    messages = [Message("user", "hello there " * 20)]
    chat.draft.delay = 0.01
    prompt = chat.engine.prompt_tokens(messages, ReplyOptions(GREEDY))
    with closing(chat.engine.reply(messages, ReplyOptions(GREEDY))) as events:
        rounds = (event for event in events if isinstance(event, Generated))
        next(rounds)
        next(rounds)
    read = list(chat.draft.tokens)
    assert read == prompt[: len(read)]
    assert 0 < len(read) < len(prompt)


@pytest.mark.parametrize("when", ["while it reads", "while it proposes"])
def test_a_draft_that_failed_is_given_up_for_good_and_said_once(model: Model, when: str) -> None:
    chat = Scripted(model, "abcabcabcabc", speculation=Speculation(Mode.DRAFT, 2))
    if when == "while it proposes":
        chat.draft.decode([1], 0)  # nothing is shared, so the prompt is read; the fault comes later
        chat.draft.fails_at_logits = True
    else:
        chat.draft.interrupt = ModelError("no more memory")
    assert chat.ask() == "abcabcabcabc"
    assert {event.round.drafter for event in chat.rounds} == {"plain"}
    assert "the draft failed: no more memory" in {event.round.reason for event in chat.rounds}
    said = [event.text for event in chat.events if isinstance(event, Notice)]
    assert len(said) == 1
    assert said[0].startswith("the draft failed: no more memory; it was released")
    assert not chat.engine.has_draft
    assert chat.engine.draft_failure == "the draft failed: no more memory"
    passes = len(chat.draft.widths)
    assert chat.ask() == "abcabcabcabc"
    assert not any(isinstance(event, Notice) for event in chat.events)
    assert len(chat.draft.widths) == passes


def test_how_fast_a_draft_reads_changes_nothing_at_a_fixed_depth(model: Model) -> None:
    """The same seed then gives the same text: random numbers are used up in the same order."""
    rounds = []
    for target, draft in ((0.0, 0.004), (0.004, 0.0)):
        chat = Scripted(model, "abcabcabcabcabcabc", speculation=Speculation(Mode.DRAFT, 2))
        chat.target.delay, chat.draft.delay = target, draft
        assert chat.ask([Message("user", "hello there " * 20)]) == "abcabcabcabcabcabc"
        rounds.append([(event.round.drafter, event.round.proposed) for event in chat.rounds])
    assert rounds[0] == rounds[1]
    assert ("draft", 2) in rounds[0]


def test_a_draft_that_is_switched_off_reads_nothing_but_forgets(model: Model) -> None:
    chat = Scripted(model, "ok", speculation=Speculation(Mode.DRAFT))
    chat.ask([Message("user", "hello there")])
    chat.engine.speculation = PLAIN
    chat.ask([Message("user", "hello again")])

    shared = list(chat.draft.tokens)
    assert shared == chat.prompt[: len(shared)]
    assert shared


def test_a_draft_with_a_shorter_context_stays_out_of_a_longer_conversation(model: Model) -> None:
    chat = Scripted(model, "abcabc", draft_ctx=20, speculation=Speculation(Mode.DRAFT, 2))

    assert chat.ask() == "abcabc"
    assert {event.round.drafter for event in chat.rounds} == {"plain"}


def test_a_prompt_longer_than_the_context_is_refused_before_the_cache_is_touched(model: Model) -> None:
    chat = Scripted(model, "ok", n_ctx=60)
    chat.ask()
    before = list(chat.target.tokens)
    messages = [Message("user", "hello " * 30)]
    n = len(chat.engine.prompt_tokens(messages, ReplyOptions()))

    with pytest.raises(PromptTooLong, match=f"{n} tokens and the context 60"):
        chat.ask(messages)
    assert list(chat.target.tokens) == before


def test_a_prompt_that_fills_the_context_leaves_one_token(model: Model) -> None:
    n = len(Scripted(model, "").engine.prompt_tokens(QUESTION, ReplyOptions()))
    chat = Scripted(model, "abc", n_ctx=n)

    assert chat.ask() == "a"
    assert chat.finished.reason == "context"


def test_a_model_that_cannot_roll_back_reads_anew_and_never_speculates(model: Model) -> None:
    chat = Scripted(model, "abcabcabc", can_roll_back=False, speculation=Speculation(Mode.NGRAM, 4))
    chat.ask([Message("user", "hello there")])
    assert {event.round.drafter for event in chat.rounds} == {"plain"}

    chat.ask([Message("user", "hello again")])
    assert chat.readings()[0].reused == 0
    assert text(chat.events) == "abcabcabc"

    chat.ask([Message("user", "hello again"), Message("assistant", "abcabcabc"), Message("user", "x")])
    assert chat.readings()[0].reused > len("abcabcabc")


# ---- stopping


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("more", range(1, 12, 3))
def test_cancelling_in_a_pass_keeps_the_text_so_far(model: Model, way: Speculation, more: int) -> None:
    chat = Scripted(model, "abcabcabcabc!", speculation=way)
    chat.target.interrupt_at = len(chat.engine.prompt_tokens(QUESTION, ReplyOptions())) + more
    kept = chat.ask(stop=("bcx",))

    assert chat.finished.reason == "cancelled"
    assert "abcabcabcabc!".startswith(kept)
    assert kept.startswith(chat.cached())
    assert chat.ask() == "abcabcabcabc!"


def test_text_held_back_for_a_stop_string_survives_cancelling(model: Model) -> None:
    chat = Scripted(model, "abcabc")
    chat.target.interrupt_at = len(chat.engine.prompt_tokens(QUESTION, ReplyOptions())) + 3

    assert chat.ask(stop=("bcd",)) == "abc"


def test_cancelling_while_reading_keeps_what_was_read(model: Model) -> None:
    chat = Scripted(model, "ok")
    long = [Message("user", "hello " * 20)]
    chat.target.interrupt_at = 40
    chat.ask(long)

    assert chat.finished.reason == "cancelled"
    assert text(chat.events) == ""
    assert len(chat.target.tokens) == 32
    assert chat.ask(long) == "ok"
    assert chat.readings()[0].reused == 32


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_reply_abandoned_at_any_event_leaves_the_engine_ready(model: Model, way: Speculation) -> None:
    chat = Scripted(model, "abcabc", speculation=way)
    chat.ask()
    for n in range(len(chat.events)):
        options = ReplyOptions(GREEDY)
        chat.target.rollback(0)
        chat.draft.rollback(0)
        events = chat.engine.reply(QUESTION, options)
        for _ in range(n):
            next(events)
        events.close()
        tokens = list(chat.target.tokens)
        whole = [*chat.prompt, *chat.target.reply]
        assert tokens == whole[: len(tokens)]
        assert chat.ask() == "abcabc"


# ---- what surrounds the text


def test_switching_takes_effect_at_the_next_round(model: Model) -> None:
    chat = Scripted(model, "abcdefghijklmnopqr", wrong_at=-1, speculation=Speculation(Mode.DRAFT, 2))
    chat.ask()
    drafters = []
    for event in chat.engine.reply(QUESTION, ReplyOptions(GREEDY)):
        if isinstance(event, Generated):
            drafters.append(event.round.drafter)
            on = len(drafters) % 4 < 2
            chat.engine.speculation = Speculation(Mode.DRAFT, 2) if on else PLAIN

    assert drafters[:6] == ["draft", "draft", "plain", "plain", "draft", "draft"]


def test_a_missing_template_is_said_once(tmp_path: Path) -> None:
    with Model.load(ggufs.write(tmp_path / "bare.gguf", template=None), vocab_only=True) as bare:
        chat = Scripted(bare, "ok")
        chat.ask()
        notices = [event.text for event in chat.events if isinstance(event, Notice)]
        chat.ask()

        assert len(notices) == 1
        assert "ChatML" in notices[0]
        assert not any(isinstance(event, Notice) for event in chat.events)


def test_an_end_token_that_has_a_text_is_not_shown(tmp_path: Path) -> None:
    vocabulary = bpe().with_token(2, "STOP", ggufs.NORMAL)
    with Model.load(ggufs.write(tmp_path / "end.gguf", vocabulary, template=None), vocab_only=True) as model:
        assert (model.piece(2), model.is_eog(2)) == (b"STOP", True)
        chat = Scripted(model, "ok", speculation=Speculation(Mode.DRAFT, 5))

        assert chat.ask() == "ok"


def test_reasoning_is_kept_apart(model: Model) -> None:
    chat = Scripted(model, "<think>\nhm, one\n</think>\n\nYes")

    assert chat.ask() == "Yes"
    assert text(chat.events, reasoning=True) == "hm, one"


class Thinker(ScriptedContext):
    """Thinks for ever, unless its reasoning is ended for it; then it answers."""

    answer = "Yes."

    def _next(self, tokens: Sequence[int]) -> NDArray[np.float64]:
        so_far = b"".join(map(self.model.piece, tokens[self.prompt :])).decode()
        _, closed, answered = so_far.partition("</think>")
        probabilities = np.zeros(self.n_vocab)
        if not closed:
            wanted = (f"<think>\n{'hm ' * len(so_far)}")[len(so_far)]
            probabilities[self.model.tokenize(wanted)[0]] = 1.0
        elif (at := len(answered.lstrip())) < len(self.answer):
            probabilities[self.model.tokenize(self.answer[at])[0]] = 1.0
        else:
            probabilities[self.model.eos or 0] = 1.0
        return probabilities


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("after", [0, 1, 20])
def test_reasoning_can_be_ended_from_outside(model: Model, way: Speculation, after: int) -> None:
    chat = Scripted(model, "", speculation=way, context=Thinker)
    prompt = chat.engine.prompt_tokens(QUESTION, ReplyOptions(GREEDY))
    chat.target.prompt = chat.draft.prompt = len(prompt)
    for event in chat.engine.reply(QUESTION, ReplyOptions(GREEDY, max_tokens=200)):
        chat.events.append(event)
        if len(chat.rounds) == after:
            chat.engine.answer_now()
    thoughts = text(chat.events, reasoning=True)

    assert text(chat.events) == "Yes."
    assert chat.finished.reason == "end"
    assert thoughts == "hm " * (len(thoughts) // 3) + "hm "[: len(thoughts) % 3]
    assert (len(thoughts) >= 10) == (after == 20)
    # Nothing of the next reply is ended.
    chat.events = []
    for event in chat.engine.reply(QUESTION, ReplyOptions(GREEDY, max_tokens=60)):
        chat.events.append(event)
    assert text(chat.events) == ""
    assert chat.finished.reason == "length"


def test_there_is_nothing_to_end_in_an_answer(model: Model) -> None:
    chat = Scripted(model, "<think>\nhm\n</think>\n\nYes, I do.")
    prompt = chat.engine.prompt_tokens(QUESTION, ReplyOptions(GREEDY))
    chat.target.prompt = len(prompt)
    for event in chat.engine.reply(QUESTION, ReplyOptions(GREEDY)):
        chat.events.append(event)
        if text(chat.events).startswith("Yes"):
            chat.engine.answer_now()

    assert text(chat.events) == "Yes, I do."


def test_an_unfinished_reply_goes_on(model: Model) -> None:
    chat = Scripted(model, " two <think> three")
    went_on = chat.ask([*QUESTION, Message("assistant", "one")], continue_last=True)

    assert went_on == " two <think> three"
    assert b"".join(map(model.piece, chat.prompt)).endswith(b"assistant\none")


def test_counting_tokens(model: Model) -> None:
    assert Scripted(model, "").engine.count_tokens("qj<|im_end|>") == 1 + len("<|im_end|>")


# ---- with real weights

Build = Callable[..., Engine]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Build]:
    """An engine over tiny models with random weights; the draft is another draw of them."""
    folder = tmp_path_factory.mktemp("weights")
    engines: list[Engine] = []

    def make(architecture: str, *, snapshots: int = 0) -> Engine:
        n = len(engines)
        path = ggufs.write(folder / f"target{n}.gguf", architecture=architecture)
        target, draft = Model.load(path), Model.load(ggufs.write(folder / f"draft{n}.gguf", shape=Shape(seed=1)))
        contexts = [Context(model, n_ctx=256, threads=1, snapshots=snapshots) for model in (target, draft)]
        engines.append(Engine(target, contexts[0], draft, contexts[1], FixedPolicy(PLAIN)))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()
        engine.close()


def tokens(engine: Engine, way: Speculation, n: int) -> list[int]:
    engine.speculation = way
    events = list(engine.reply(QUESTION, ReplyOptions(GREEDY, max_tokens=n)))
    return [token for event in events if isinstance(event, Generated) for token in event.round.tokens]


@pytest.mark.parametrize(("architecture", "snapshots"), [("llama", 0), ("gemma3", 0), ("mamba", 0), ("lfm2", 3)])
def test_every_way_writes_the_same_tokens_at_temperature_0(build: Build, architecture: str, snapshots: int) -> None:
    engine = build(architecture, snapshots=snapshots)
    plain = tokens(engine, PLAIN, 60)

    assert len(plain) > 20
    for way in WAYS[1:]:
        assert tokens(engine, way, 60) == plain, way


def test_a_hybrid_target_with_snapshots_really_speculates(build: Build) -> None:
    engine = build("lfm2", snapshots=3)
    engine.speculation = Speculation(Mode.DRAFT, 5)
    events = list(engine.reply(QUESTION, ReplyOptions(GREEDY, max_tokens=30)))
    rounds = [event.round for event in events if isinstance(event, Generated)]

    assert {event.drafter for event in rounds[1:-1]} == {"draft"}
    assert max(event.proposed for event in rounds) == 3


@pytest.mark.parametrize(("architecture", "snapshots", "reads"), [("lfm2", 3, False), ("llama", 0, True)])
def test_nothing_is_read_for_a_draft_whose_depths_that_can_be_taken_back_never_pay(
    build: Build, architecture: str, snapshots: int, reads: bool
) -> None:
    engine = build(architecture, snapshots=snapshots)
    only_deep = Costs({1: 1.0, 2: 3.0, 4: 4.5, 8: 4.6, 32: 4.7}, {1: 0.01, 512: 0.02}, measured=True)
    engine._policy = AdaptivePolicy(Speculation(), only_deep, Learned(0.95))
    engine._policy.disturbed = True  # what passes really cost here is another matter
    draft = engine._draft_context
    assert draft is not None
    read = False
    for _ in engine.reply(QUESTION, ReplyOptions(GREEDY, max_tokens=30)):
        read |= len(draft.tokens) > 0
    assert read == reads


@pytest.mark.parametrize(("limit", "reads"), [(4, False), (60, True)])
def test_a_draft_reads_along_only_for_a_reply_that_may_be_long_enough(build: Build, limit: int, reads: bool) -> None:
    engine = build("llama")
    dear_to_read = Costs({1: 1.0, 32: 1.5}, {1: 0.3, 512: 153.6}, measured=True)
    engine._policy = AdaptivePolicy(Speculation(), dear_to_read, Learned(0.95))
    engine._policy.disturbed = True
    draft = engine._draft_context
    assert draft is not None
    read = False
    for _ in engine.reply(QUESTION, ReplyOptions(GREEDY, max_tokens=limit)):
        read |= len(draft.tokens) > 0
    assert read == reads


def test_a_draft_that_was_released_for_a_failure_is_an_error_to_use_and_no_crash(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build("llama")
    engine.speculation = Speculation(Mode.DRAFT, 2)
    whole = text(list(engine.reply(QUESTION, ReplyOptions(GREEDY, max_tokens=20))))
    draft = engine._draft_context
    assert draft is not None

    def fail(*_: object) -> None:
        raise ModelError("no more memory")

    with monkeypatch.context() as patch:
        patch.setattr(draft, "decode", fail)
        assert text(list(engine.reply(QUESTION, ReplyOptions(GREEDY, max_tokens=20)))) == whole
    assert not engine.has_draft
    assert list(draft.tokens) == []
    draft.rollback(0)
    with pytest.raises(ModelError, match="was released"):
        draft.decode([1], 1)


def test_the_real_pair_writes_one_text(demo_pair: DemoPair) -> None:
    models = [Model.load(path) for path in (demo_pair.target, demo_pair.draft)]
    contexts = [Context(model, n_ctx=512, threads=1) for model in models]
    engine = Engine(models[0], contexts[0], models[1], contexts[1], FixedPolicy(PLAIN))
    texts = []
    for way in (PLAIN, Speculation(Mode.DRAFT, 4), Speculation(Mode.NGRAM, 8)):
        engine.speculation = way
        question = [Message("user", "Write the numbers from one to ten as words.")]
        texts.append(text(list(engine.reply(question, ReplyOptions(GREEDY, max_tokens=40)))))
    engine.close()

    assert texts[1:] == texts[:1] * 2
    assert texts[0].strip()
