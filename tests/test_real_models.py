"""The engine over real weights: what only a real model can show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from specchat.engine.chat import Engine
from specchat.engine.llama import Context, Model
from specchat.engine.policy import AdaptivePolicy, FixedPolicy, Mode, Speculation
from specchat.engine.replies import Generated, Message, ReplyOptions
from specchat.engine.rounds import Round
from specchat.engine.sampling import SamplingSettings

GREEDY = SamplingSettings(temperature=0.0)
PROMPTS = ("Explain in three sentences why the sky is blue.", "Write a short poem about a lighthouse.")


@pytest.fixture(scope="module")
def self_pair(smollm2: Path) -> Iterator[Engine]:
    """The same file as target and draft."""
    target, draft = Model.load(smollm2), Model.load(smollm2)
    contexts = [Context(model, n_ctx=1024, threads=1) for model in (target, draft)]
    engine = Engine(target, contexts[0], draft, contexts[1], FixedPolicy(Speculation()))
    yield engine
    engine.close()


def reply(engine: Engine, prompt: str, speculation: Speculation, sampling: SamplingSettings = GREEDY) -> list[Round]:
    engine.speculation = speculation
    options = ReplyOptions(sampling=sampling, max_tokens=48)
    events = engine.reply([Message("user", prompt)], options)
    return [event.round for event in events if isinstance(event, Generated)]


def tokens(rounds: list[Round]) -> list[int]:
    return [token for event in rounds for token in event.tokens]


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("depth", [2, 5])
def test_a_model_drafting_for_itself_is_nearly_always_accepted(self_pair: Engine, prompt: str, depth: int) -> None:
    plain = reply(self_pair, prompt, Speculation(Mode.OFF))
    drafted = reply(self_pair, prompt, Speculation(Mode.DRAFT, depth))
    accepted, tested = sum(r.accepted for r in drafted), sum(r.tested for r in drafted)
    assert accepted >= 0.99 * tested
    assert tokens(drafted) == tokens(plain)


def test_sampled_self_drafts_are_accepted_too(self_pair: Engine) -> None:
    """q is the distribution that the proposals were drawn from: equal models then hardly ever disagree."""
    sampled = SamplingSettings(temperature=1.0, seed=3)
    rounds = reply(self_pair, PROMPTS[0], Speculation(Mode.DRAFT, 4), sampled)
    assert sum(r.accepted for r in rounds) >= 0.97 * sum(r.tested for r in rounds)


@pytest.mark.parametrize("speculation", [Speculation(Mode.OFF), Speculation(Mode.DRAFT, 3), Speculation(Mode.NGRAM, 6)])
def test_the_same_seed_in_a_fresh_context_gives_the_same_text(smollm2: Path, speculation: Speculation) -> None:
    def once() -> list[int]:
        target, draft = Model.load(smollm2), Model.load(smollm2)
        contexts = [Context(model, n_ctx=512, threads=1) for model in (target, draft)]
        engine = Engine(target, contexts[0], draft, contexts[1], AdaptivePolicy(Speculation()))
        try:
            return tokens(reply(engine, PROMPTS[1], speculation, SamplingSettings(seed=11)))
        finally:
            engine.close()

    assert once() == once()


def test_auto_writes_plains_text_at_temperature_0(self_pair: Engine) -> None:
    plain = reply(self_pair, PROMPTS[0], Speculation(Mode.OFF))
    assert tokens(reply(self_pair, PROMPTS[0], Speculation(Mode.AUTO))) == tokens(plain)
