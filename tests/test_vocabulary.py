"""Each rule of llama.cpp's compatibility check, by a pair of files that breaks only that rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from specchat.engine.llama import Model
from specchat.engine.vocabulary import checks, mismatch
from tests import ggufs
from tests.ggufs import Vocabulary, bpe, sentencepiece

BPE = bpe(("<|a|>", "<|b|>", "<|c|>", "<|d|>", "<|e|>", "<|end|>"))

Load = Callable[[str, Vocabulary], Model]


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    models: list[Model] = []

    def make(name: str, vocabulary: Vocabulary) -> Model:
        path = ggufs.write(tmp_path / f"{name}.gguf", vocabulary)
        models.append(Model.load(path, vocab_only=True))
        return models[-1]

    yield make
    for model in models:
        model.close()


@pytest.mark.parametrize(
    ("target", "draft"),
    [
        (BPE, BPE),
        (BPE.padded(len(BPE.tokens) + 128), BPE),
        (BPE, BPE.padded(len(BPE.tokens) + 128)),
        (BPE, BPE.with_token(4, "<|renamed|>")),
        # Ids of tokens that are never added do not count.
        (BPE, replace(BPE, bos=1)),
        (sentencepiece(), sentencepiece()),
    ],
    ids=["same", "target padded", "draft padded", "text below id 5", "unused BOS id", "SentencePiece"],
)
def test_a_compatible_pair(load: Load, target: Vocabulary, draft: Vocabulary) -> None:
    models = load("target", target), load("draft", draft)

    assert mismatch(*models) is None
    assert all(check.passed for check in checks(*models))


@pytest.mark.parametrize(
    ("target", "draft", "rule", "words"),
    [
        (BPE, sentencepiece(), 0, ["SentencePiece", "byte-level BPE"]),
        (BPE, replace(BPE, add_bos=True), 1, ["the draft puts BOS on every text"]),
        (replace(BPE, add_bos=True), replace(BPE, add_bos=True, bos=1), 1, ["token 1 in the draft", "0 in the target"]),
        (replace(BPE, add_eos=True), BPE, 2, ["the target puts EOS on every text"]),
        (BPE, BPE.padded(len(BPE.tokens) + 129), 3, ["395", "266", "128"]),
        (BPE, BPE.with_token(5, "<|other|>"), 4, ["token 5", "<|other|>", "<|end|>"]),
        (BPE, BPE.with_token(len(BPE.tokens) - 1, "Ġx"), 4, ["token 265", "Ġx", "Ġt"]),
    ],
    ids=["kind", "BOS added", "BOS id", "EOS added", "size", "text at id 5", "last text"],
)
def test_what_differs_is_named(load: Load, target: Vocabulary, draft: Vocabulary, rule: int, words: list[str]) -> None:
    models = load("target", target), load("draft", draft)

    sentence = mismatch(*models)
    assert sentence is not None
    assert sentence.startswith("draft.gguf cannot draft for target.gguf: ")
    assert all(word in sentence for word in words), sentence
    found = checks(*models)
    assert len(found) == 5
    assert [check.passed for check in found[:rule]] == [True] * rule
    assert not found[rule].passed
