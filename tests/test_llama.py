"""llama.cpp behind `Model` and `Context`: sentences instead of crashes, and a cache that is what it says it is."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from specchat.engine import llama
from specchat.engine.cache import Cancelled, RollbackError
from specchat.engine.llama import Context, Model, ModelError
from specchat.engine.native import api
from tests import ggufs
from tests.ggufs import Shape, bpe, sentencepiece


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def load(folder: Path) -> Iterator[Callable[[str], Model]]:
    """A tiny model of an architecture, loaded once."""
    models: dict[str, Model] = {}

    def by_architecture(architecture: str) -> Model:
        if architecture not in models:
            path = ggufs.write(folder / f"{architecture}.gguf", architecture=architecture)
            models[architecture] = Model.load(path)
        return models[architecture]

    yield by_architecture
    for model in models.values():
        model.close()


Load = Callable[[str], Model]


def context(model: Model, **options: Any) -> Context:
    return Context(model, **{"n_ctx": 256, "threads": 1} | options)


def fresh_logits(model: Model, tokens: list[int]) -> np.ndarray[Any, Any]:
    """The row after `tokens`, from a context that has seen nothing else."""
    with context(model) as other:
        return other.decode(tokens, 1).copy()


def same(rows: np.ndarray[Any, Any], others: np.ndarray[Any, Any]) -> None:
    """Equal but for the rounding of other batch widths, a hundredth of what another token would change."""
    np.testing.assert_allclose(rows, others, atol=0.02)


def prompt(n: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(10, 260), k=n)


# ---- loading


def test_what_a_header_says(folder: Path) -> None:
    shape = Shape(n_layer=3, n_ctx_train=777, quantisation="Q8_0")
    path = ggufs.write(folder / "header.gguf", bpe(), shape=shape, name="A name", metadata={"some.key": "x" * 1000})
    with Model.load(path) as model:
        assert (model.n_vocab, model.n_ctx_train, model.n_layer) == (263, 777, 3)
        assert model.name == "A name"
        parameters = sum(tensor.n_elements for tensor in gguf.GGUFReader(path).tensors)
        assert model.description == f"llama {parameters / 1000:.0f}K (guessed) Q8_0"
        assert model.chat_template == ggufs.CHATML
        assert model.metadata["general.architecture"] == "llama"
        assert model.metadata["some.key"] == "x" * 1000
        assert (model.bos, model.eos, model.add_bos, model.add_eos) == (0, 2, False, False)
        assert model.rollback_obstacle is None
        assert 0 < model.size_bytes < path.stat().st_size


def test_a_file_without_name_and_template(folder: Path) -> None:
    with Model.load(ggufs.write(folder / "bare.gguf", template=None, name=None), vocab_only=True) as model:
        assert model.name == "bare"
        assert model.chat_template is None


def unreadable(folder: Path, kind: str) -> Path:
    good = ggufs.write(folder / "good.gguf")
    path = folder / f"{kind}.gguf"
    match kind:
        case "folder":
            path.mkdir()
        case "empty":
            path.touch()
        case "text":
            path.write_text("a GGUF file this is not")
        case "garbage":
            path.write_bytes(b"GGUF" + random.Random(1).randbytes(5000))
        case "header-cut":
            ggufs.truncated(path, good, 3000)
        case "weights-cut":
            ggufs.truncated(path, good, -1000)
        case "magic-only":
            path.write_bytes(b"GGUF")
        case "unknown":
            ggufs.write(path, architecture="gpt-neverheardof")
        case "encoder":
            ggufs.write(path, architecture="bert")
    return path


@pytest.mark.parametrize("vocab_only", [False, True])
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("missing", "there is no file"),
        ("folder", "is a folder"),
        ("empty", "is empty"),
        ("text", "is not a GGUF file"),
        ("garbage", "newer version .* or is damaged"),
        ("header-cut", "incomplete or damaged"),
        ("magic-only", "incomplete or damaged"),
        ("unknown", "gpt-neverheardof, which this llama.cpp does not know"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_named_in_one_sentence(
    tmp_path: Path, kind: str, words: str, vocab_only: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    path = unreadable(tmp_path, kind)
    with pytest.raises(ModelError, match=words) as error:
        Model.load(path, vocab_only=vocab_only)

    assert f"{kind}.gguf" in str(error.value)
    assert "\n" not in str(error.value)
    assert capfd.readouterr() == ("", "")


def test_missing_weights_are_noticed_when_they_are_wanted(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"weights-cut\.gguf is incomplete or damaged"):
        Model.load(unreadable(tmp_path, "weights-cut"))


def test_a_model_for_embeddings_cannot_chat(tmp_path: Path) -> None:
    with (
        Model.load(unreadable(tmp_path, "encoder")) as model,
        pytest.raises(ModelError, match=r"encoder\.gguf cannot chat"),
    ):
        context(model)


def test_progress_runs_from_nothing_to_all(folder: Path) -> None:
    seen: list[float] = []

    def progress(fraction: float) -> bool:
        seen.append(fraction)
        return True

    Model.load(ggufs.write(folder / "progress.gguf"), progress=progress).close()

    assert seen == sorted(seen)
    assert seen[0] == 0.0
    assert seen[-1] == 1.0


def test_loading_stops_when_progress_says_so(folder: Path) -> None:
    with pytest.raises(Cancelled):
        Model.load(ggufs.write(folder / "stopped.gguf"), progress=lambda x: x < 0.3)


def test_what_progress_raises_is_passed_on(folder: Path) -> None:
    def progress(_: float) -> bool:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        Model.load(ggufs.write(folder / "raising.gguf"), progress=progress)


def test_an_unknown_device_is_refused_with_those_there_are(folder: Path) -> None:
    with pytest.raises(ModelError, match="no device CUDA7 here; there is CPU"):
        Model.load(ggufs.write(folder / "device.gguf"), devices=["CUDA7"])


def test_closing_is_safe_to_repeat_and_closes_contexts_first(folder: Path) -> None:
    model = Model.load(ggufs.write(folder / "closing.gguf"))
    one, other = context(model), context(model)
    one.close()
    one.close()
    other.decode([10], 1)
    model.close()
    model.close()
    other.close()

    with pytest.raises(ValueError, match="closed"):
        context(model)


def test_a_vocabulary_alone_has_no_context(folder: Path) -> None:
    with (
        Model.load(ggufs.write(folder / "vocabulary.gguf"), vocab_only=True) as model,
        pytest.raises(ValueError, match="vocabulary only"),
    ):
        context(model)


def test_the_native_log_goes_to_the_file_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = ggufs.write(tmp_path / "logged.gguf")
    llama.log_to(tmp_path / "native.log")
    try:
        Model.load(path).close()
    finally:
        llama.log_to(None)

    assert "logged.gguf" in (tmp_path / "native.log").read_text()
    assert capfd.readouterr() == ("", "")


def test_this_machine_has_a_cpu() -> None:
    cpu = next(device for device in llama.devices() if device.kind == "cpu")
    assert cpu.name == "CPU"
    assert cpu.total > 0


# ---- tokens


@pytest.mark.parametrize("vocabulary", [bpe(), sentencepiece(add_bos=False, add_space_prefix=False)])
@pytest.mark.parametrize("text", ["hello", "", "né €", "\x00a", "line\nline", "a\ud800b", "🙂"])
def test_pieces_spell_the_text_again(folder: Path, vocabulary: ggufs.Vocabulary, text: str) -> None:
    with Model.load(ggufs.write(folder / "spelling.gguf", vocabulary), vocab_only=True) as model:
        spelled = b"".join(model.piece(token) for token in model.tokenize(text))

    assert spelled == text.encode("utf-8", "replace")


def test_control_tokens_are_parsed_only_when_asked_and_have_no_text(load: Load) -> None:
    model = load("llama")
    text = "he<|im_end|>"

    assert model.tokenize(text, parse_special=True) == [model.tokenize("he")[0], 2]
    assert 2 not in model.tokenize(text)
    assert model.piece(2) == b""
    assert model.token_text(2) == "<|im_end|>"
    assert [model.is_control(token) for token in (0, 1, 2, 3)] == [True, True, True, False]
    assert [model.is_eog(token) for token in (1, 2)] == [False, True]


def test_special_tokens_around_a_text_are_added_only_when_asked(folder: Path) -> None:
    with Model.load(ggufs.write(folder / "bos.gguf", bpe(add_bos=True)), vocab_only=True) as model:
        assert model.tokenize("he", add_special=True) == [0, *model.tokenize("he")]


def test_reasoning_tags_are_text_even_as_control_tokens(folder: Path) -> None:
    vocabulary = bpe(("<|a|>", "<think>", "</think>", "<|end|>"))
    with Model.load(ggufs.write(folder / "think.gguf", vocabulary), vocab_only=True) as model:
        assert [model.piece(token) for token in range(4)] == [b"", b"<think>", b"</think>", b""]


def test_a_very_long_token(folder: Path) -> None:
    vocabulary = bpe(user_defined=("x" * 300,))
    with Model.load(ggufs.write(folder / "long.gguf", vocabulary), vocab_only=True) as model:
        assert model.piece(3) == b"x" * 300


# ---- decoding

EVERY = ["llama", "gemma3", "mamba", "lfm2"]
ROLLING = ["llama", "gemma3"]


@pytest.mark.parametrize("architecture", EVERY)
def test_rows_of_one_pass_are_those_of_single_steps(load: Load, architecture: str) -> None:
    model = load(architecture)
    tokens = prompt(12)
    with context(model) as one, context(model) as other:
        single = np.concatenate([one.decode([token], 1).copy() for token in tokens])
        together = other.decode(tokens, len(tokens))

        same(together, single)
        assert together.shape == (12, model.n_vocab)
        assert together.dtype == np.float32
        assert list(other.tokens) == tokens


@pytest.mark.parametrize("architecture", EVERY)
def test_a_long_text_takes_as_many_batches_as_it_needs(load: Load, architecture: str) -> None:
    model = load(architecture)
    tokens = prompt(100)  # beyond the sliding window
    with context(model, n_batch=7) as small:
        rows = small.decode(tokens, 10).copy()

    assert rows.shape == (10, model.n_vocab)
    for back in (0, 9):
        same(rows[9 - back], fresh_logits(model, tokens[: 100 - back])[0])


def test_more_rows_than_the_buffers_hold(load: Load) -> None:
    model = load("llama")
    tokens = prompt(30)
    with context(model, n_outputs_max=4) as narrow, context(model) as wide:
        same(narrow.decode(tokens, 21), wide.decode(tokens, 21))


@pytest.mark.parametrize("n_logits", [0, 1])
def test_nothing_more_than_asked(load: Load, n_logits: int) -> None:
    with context(load("llama")) as cache:
        assert cache.decode(prompt(5), n_logits).shape == (n_logits, cache.n_vocab)
        assert cache.decode([], 0).shape == (0, cache.n_vocab)
        assert len(cache.tokens) == 5


def test_rows_cannot_be_written_to(load: Load) -> None:
    with context(load("llama")) as cache:
        row = cache.decode(prompt(5), 1)
        with pytest.raises(ValueError, match="read-only"):
            row[0, 0] = 1.0


def test_a_full_context_is_said_before_anything_happens(load: Load) -> None:
    with context(load("llama"), n_ctx=20) as cache:
        cache.decode(prompt(15), 0)
        with pytest.raises(ModelError, match=r"context of llama\.gguf is full: 21 tokens, 20 cells"):
            cache.decode(prompt(6), 0)
        assert len(cache.tokens) == 15
        cache.decode(prompt(5), 1)


def test_a_token_outside_the_vocabulary_leaves_the_cache_alone(load: Load) -> None:
    model = load("llama")
    tokens = prompt(10)
    with context(model, n_batch=8) as cache:
        cache.decode(tokens[:5], 0)
        with pytest.raises(ModelError, match=r"refused a batch of tokens for llama\.gguf"):
            cache.decode([*prompt(12), model.n_vocab], 0)
        assert list(cache.tokens) == tokens[:5]
        same(cache.decode(tokens[5:], 1), fresh_logits(model, tokens))


# ---- rolling back


@pytest.mark.parametrize("architecture", ROLLING)
@pytest.mark.parametrize("seed", range(5))
def test_any_sequence_of_decoding_and_rolling_back_equals_a_fresh_start(
    load: Load, architecture: str, seed: int
) -> None:
    model = load(architecture)
    dice = random.Random(seed)
    expected: list[int] = []
    with context(model, n_batch=16) as cache:
        for step in range(30):
            if expected and dice.random() < 0.5:
                keep = dice.randint(0, len(expected))
                cache.rollback(keep)
                del expected[keep:]
            else:
                tokens = prompt(dice.choice([1, 2, 5, 20]), seed=step)
                cache.decode(tokens, dice.randint(0, len(tokens)))
                expected += tokens
            assert list(cache.tokens) == expected
            if len(expected) > 200:
                cache.rollback(0)
                expected = []
        same(cache.decode([10], 1), fresh_logits(model, [*expected, 10]))


@pytest.mark.parametrize("architecture", ["mamba", "lfm2"])
def test_a_running_state_cannot_be_rolled_back_in_part(load: Load, architecture: str) -> None:
    model = load(architecture)
    assert model.rollback_obstacle is not None
    assert architecture in model.rollback_obstacle
    tokens = prompt(10)
    with context(model) as cache:
        assert cache.rollback_limit == 0
        row = cache.decode(tokens, 1).copy()
        for keep in (9, 5, 1):
            with pytest.raises(RollbackError, match=architecture):
                cache.rollback(keep)
        assert list(cache.tokens) == tokens
        cache.rollback(10)  # keeping everything
        cache.rollback(0)  # and keeping nothing always work
        assert list(cache.tokens) == []
        same(cache.decode(tokens, 1), row)


@pytest.mark.parametrize("accepted", [0, 1, 2, 3, 4])
def test_snapshots_let_a_hybrid_model_take_proposals_back(load: Load, accepted: int) -> None:
    model = load("lfm2")
    kept, proposals = prompt(40), prompt(4, seed=9)
    with context(model, snapshots=4) as cache:
        assert cache.rollback_limit == 4
        cache.decode(kept[:-1], 0)
        for start in range(3):  # several rounds in a row
            cache.decode([kept[-1], *proposals], 5)
            cache.rollback(len(kept) + accepted)
            kept += [*proposals[:accepted], 20 + start]
        assert list(cache.tokens) == kept[:-1]
        same(cache.decode(kept[-1:], 1), fresh_logits(model, kept))


def test_a_snapshot_that_was_not_taken_is_not_gone_back_to(load: Load) -> None:
    with context(load("lfm2"), snapshots=4) as cache:
        cache.decode(prompt(10), 0)
        cache.decode([10], 1)
        with pytest.raises(RollbackError):
            cache.rollback(9)  # llama.cpp would say yes and hold another state
        cache.decode(prompt(5), 1)
        cache.rollback(14)
        with pytest.raises(RollbackError):
            cache.rollback(13)  # a snapshot serves once


def test_snapshots_where_llama_cpp_keeps_none(load: Load) -> None:
    with context(load("mamba"), snapshots=4) as mamba, context(load("llama"), snapshots=4) as plain:
        assert mamba.rollback_limit == 0
        assert plain.rollback_limit is None


# ---- stopping


class Countdown:
    """Says yes from the `n`th time it is asked."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.asked = 0

    def __call__(self) -> bool:
        self.asked += 1
        return self.asked >= self.n


NEVER = 1 << 60


@pytest.mark.parametrize("architecture", ROLLING)
@pytest.mark.parametrize("asked", [1, 2, 20, 60, 90])
def test_a_stopped_pass_leaves_the_cache_as_it_was(load: Load, architecture: str, asked: int) -> None:
    model = load(architecture)
    countdown = Countdown(NEVER)
    tokens = prompt(120)
    with context(model, n_batch=32, cancelled=countdown) as cache:
        cache.decode(tokens[:20], 0)
        countdown.n, countdown.asked = asked, 0
        with pytest.raises(Cancelled):
            cache.decode(tokens[20:], 1)
        assert list(cache.tokens) == tokens[:20]
        assert api.llama_memory_seq_pos_max(cache._memory, 0) == 19
        countdown.n = NEVER
        same(cache.decode(tokens[20:], 1), fresh_logits(model, tokens))


@pytest.mark.parametrize("architecture", ["mamba", "lfm2"])
def test_a_stopped_pass_empties_a_cache_that_cannot_roll_back(load: Load, architecture: str) -> None:
    model = load(architecture)
    countdown = Countdown(NEVER)
    tokens = prompt(60)
    with context(model, cancelled=countdown) as cache:
        cache.decode(tokens[:20], 0)
        countdown.n, countdown.asked = 10, 0
        with pytest.raises(Cancelled):
            cache.decode(tokens[20:], 1)
        assert list(cache.tokens) == []
        countdown.n = NEVER
        same(cache.decode(tokens, 1), fresh_logits(model, tokens))


def test_a_single_step_of_a_model_that_cannot_roll_back_is_never_broken_off(load: Load) -> None:
    countdown = Countdown(NEVER)
    with context(load("mamba"), cancelled=countdown) as cache:
        cache.decode(prompt(20), 0)
        cache._last_pass = 10.0  # as slow as a model that is worth interrupting
        countdown.n, countdown.asked = 2, 0
        cache.decode([10], 1)
        assert len(cache.tokens) == 21


def test_a_short_pass_is_not_slowed_down_by_asking(load: Load) -> None:
    countdown = Countdown(NEVER)
    with context(load("llama"), cancelled=countdown) as cache:
        cache.decode(prompt(3), 3)
        assert countdown.asked == 1
        cache.decode(prompt(40), 1)
        assert countdown.asked > 10


# ---- contexts that cannot be


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"type_k": "f17"}, "no cache type f17; there is f32, f16"),
        ({"type_k": "q8_0", "flash_attention": True}, r"cannot make a context for llama\.gguf: K cache type q8_0"),
        ({"type_v": "q8_0", "flash_attention": False}, r"context for llama\.gguf: quantized V cache requires"),
    ],
)
def test_a_context_that_llama_cpp_refuses(load: Load, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        context(load("llama"), **options)


def test_cache_types_for_exact_decoding(load: Load) -> None:
    with context(load("llama"), type_k="f16", type_v="bf16", flash_attention=True) as cache:
        assert np.isfinite(cache.decode(prompt(20), 4)).all()


def test_a_context_too_large_for_the_memory_is_a_sentence_and_costs_nothing(load: Load) -> None:
    model = load("llama")
    program = f"""
        import resource
        from pathlib import Path
        from specchat.engine.llama import Context, Model, ModelError
        model = Model.load(Path({str(model.path)!r}))
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20),) * 2)
        try:
            Context(model, n_ctx=4_000_000, threads=1)
        except ModelError as error:
            print(error)
        print(Context(model, n_ctx=256, threads=1).decode([10], 1).shape)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=True
    )

    assert "not enough memory for a context of 4,000,000 tokens with llama.gguf" in done.stdout
    assert f"(1, {model.n_vocab})" in done.stdout


def test_nothing_reaches_the_terminal(load: Load, capfd: pytest.CaptureFixture[str]) -> None:
    with context(load("llama")) as cache:
        cache.decode(prompt(40), 1)
        cache.rollback(3)

    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("quantisation", ["F16", "Q8_0", "Q4_0"])
def test_quantised_weights(folder: Path, quantisation: str) -> None:
    path = ggufs.write(folder / f"{quantisation}.gguf", shape=Shape(quantisation=quantisation))
    with Model.load(path) as model, context(model) as cache:
        assert np.isfinite(cache.decode(prompt(9), 2)).all()


def test_the_real_model_says_something_sensible(smollm2: Path) -> None:
    with Model.load(smollm2) as model, context(model) as cache:
        tokens = model.tokenize("The capital of France is")
        best = int(cache.decode(tokens, 1)[0].argmax())

        assert model.piece(best) == b" Paris"
        assert model.n_vocab == 49152
        assert model.is_eog(model.tokenize("<|im_end|>", parse_special=True)[0])
