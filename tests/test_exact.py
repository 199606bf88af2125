"""Exact mode: what the check finds, and that every drafter and depth then writes plain decoding's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from specchat.engine import exact
from specchat.engine.cache import Logits
from specchat.engine.chat import Engine
from specchat.engine.llama import Context, Model
from specchat.engine.policy import AdaptivePolicy, Mode, Speculation
from specchat.engine.replies import Generated, Message, ReplyOptions
from specchat.engine.sampling import SamplingSettings
from specchat.worker import loader
from specchat.worker.protocol import Load, LoadSettings
from tests import ggufs
from tests.conftest import DemoPair
from tests.scripted_models import ScriptedCache

SOME = [Speculation(Mode.DRAFT, 3), Speculation(Mode.DRAFT, 8), Speculation(Mode.NGRAM, 15), Speculation(Mode.AUTO)]


class Noisy(ScriptedCache):
    """Gives other last bits where several tokens share a pass `deep` enough in the cache."""

    def __init__(self, deep: int, n_ctx: int = 2048) -> None:
        super().__init__(lambda tokens: np.roll([0.4, 0.3, 0.2, 0.1], tokens[-1]), 4, n_ctx)
        self._deep = deep

    def decode(self, tokens: Sequence[int], n_logits: int) -> Logits:
        rows = super().decode(tokens, n_logits)
        off = len(tokens) >= 4 and n_logits > 1 and len(self.tokens) > self._deep
        return np.nextafter(rows, np.float32(9.0)) if off else rows


TEXT = [i % 4 for i in range(1000)]


@pytest.mark.parametrize(("deep", "found"), [(0, 4), (512, 4), (5000, None)])
def test_the_check_finds_a_last_bit_few_or_hundreds_of_tokens_in(deep: int, found: int | None) -> None:
    cache = Noisy(deep)
    result = exact.difference(cache, TEXT)
    assert (result and result[0]) == found
    assert len(cache.tokens) == 0


def test_a_short_context_is_checked_as_far_as_it_goes() -> None:
    assert exact.difference(Noisy(0, n_ctx=40), TEXT) is not None
    assert exact.difference(Noisy(5000, n_ctx=40), TEXT) is None


@pytest.mark.parametrize("exact_mode", [True, False])
def test_a_real_model_is_exact_with_the_right_cache_and_not_with_the_usual_one(
    demo_pair: DemoPair, exact_mode: bool
) -> None:
    type_v, flash = (exact.TYPE_V, True) if exact_mode else ("f16", None)
    # Two threads: with one there is nothing to split, and the usual cache is as exact.
    with (
        Model.load(demo_pair.target) as model,
        Context(model, n_ctx=1024, threads=2, type_v=type_v, flash_attention=flash) as context,
    ):
        tokens = model.tokenize(exact.sample_text())
        context.decode(tokens[:600], 0)
        alone = exact.in_widths(context, tokens[600:608], 1)
        same = [np.array_equal(exact.in_widths(context, tokens[600:608], width), alone) for width in (2, 4, 8)]
    assert all(same) is exact_mode


def test_the_refusal_names_the_quantisation_that_would_do(tmp_path: Path) -> None:
    file = ggufs.write(tmp_path / "half.gguf", shape=ggufs.Shape(quantisation="F16", n_ctx_train=1024))
    with Model.load(file) as model, Context(model, type_v=exact.TYPE_V, flash_attention=True) as context:
        sentence = exact.obstacle(context)
    assert sentence is not None
    assert "its quantisation is F16" in sentence
    assert "a Q8_0 or Q4_0 file would do" in sentence


def notices(file: Path) -> tuple[str, ...]:
    """What a person is told who asks for exact mode."""
    request = Load(1, file, settings=LoadSettings(threads=1, exact=True))
    engine, info = loader.load_engine(request, lambda _stage, _fraction: None, lambda: False)
    engine.close()
    return info.notices


def test_loading_checks_exact_mode_once_and_refuses_it_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, half = (
        ggufs.write(tmp_path / f"{kind}.gguf", shape=ggufs.Shape(quantisation=kind, n_ctx_train=1024))
        for kind in ("Q8_0", "F16")
    )
    checked: list[str] = []
    obstacle = exact.obstacle

    def counted(context: Context) -> str | None:
        checked.append(context.model.path.name)
        return obstacle(context)

    monkeypatch.setattr(exact, "obstacle", counted)
    assert [notices(good), notices(good)] == [(), ()]
    for said in (notices(half), notices(half)):
        assert len(said) == 1
        assert said[0].startswith("exact mode is off: F16.gguf cannot be exact here")
    assert checked == ["Q8_0.gguf", "F16.gguf"]


def test_drafters_and_depths_give_plain_decodings_tokens_some_hundred_tokens_in(demo_pair: DemoPair) -> None:
    """Every depth, and a thousand tokens in: tests/long."""
    with Model.load(demo_pair.target) as target, Model.load(demo_pair.draft) as draft:
        cache = Context(target, n_ctx=1024, threads=2, type_v=exact.TYPE_V, flash_attention=True)
        engine = Engine(target, cache, draft, Context(draft, n_ctx=1024, threads=2), AdaptivePolicy(Speculation()))
        check_texts(engine, exact.sample_text()[:2200], 520, SOME, 12)


def check_texts(engine: Engine, file: str, least: int, speculations: Sequence[Speculation], n: int) -> None:
    """The engine rewrites `file`, of at least so many tokens, in every way; up to `n` tokens each."""
    messages = [Message("user", f"{file}\nRewrite this file without its comments.")]
    options = ReplyOptions(SamplingSettings(temperature=0.0), max_tokens=n)
    assert len(engine.prompt_tokens(messages, options)) > least

    def written(speculation: Speculation) -> list[int]:
        engine.speculation = speculation
        return [t for e in engine.reply(messages, options) if isinstance(e, Generated) for t in e.round.tokens]

    plain = written(Speculation(Mode.OFF))
    assert len(plain) > n // 2
    for speculation in speculations:
        assert written(speculation) == plain, speculation
