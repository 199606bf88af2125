"""Fake models for engine tests: a cache whose next-token distribution is scripted, with no weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from specchat.engine.cache import Logits, RollbackError


class VirtualClock:
    """Seconds that pass only when a scripted model works: the same run takes the same time, always."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


Script = Callable[[Sequence[int]], NDArray[np.float64]]  # tokens so far -> probabilities (n_vocab,)


class ScriptedCache:
    """A `Cache` that knows only its tokens and a script. Enforces what llama.cpp enforces."""

    def __init__(
        self,
        script: Script,
        n_vocab: int,
        n_ctx: int = 4096,
        *,
        can_roll_back: bool = True,
        clock: VirtualClock | None = None,
        cost: Callable[[int], float] = lambda _: 0.0,
    ) -> None:
        self._script = script
        self._n_vocab = n_vocab
        self._n_ctx = n_ctx
        self._tokens: list[int] = []
        self.can_roll_back = can_roll_back
        self._clock = clock or VirtualClock()
        self._cost = cost  # seconds of a pass over n tokens
        self.widths: list[int] = []  # tokens of each decode call
        self.interrupt: Exception | None = None  # raised by the next decode, cache unchanged

    @property
    def n_ctx(self) -> int:
        return self._n_ctx

    @property
    def n_vocab(self) -> int:
        return self._n_vocab

    @property
    def tokens(self) -> Sequence[int]:
        return self._tokens

    def decode(self, tokens: Sequence[int], n_logits: int) -> Logits:
        if self.interrupt is not None:
            interrupt, self.interrupt = self.interrupt, None
            raise interrupt
        if len(self._tokens) + len(tokens) > self._n_ctx:
            raise AssertionError(f"{len(self._tokens)} + {len(tokens)} tokens in {self._n_ctx} cells")
        if any(not 0 <= token < self._n_vocab for token in tokens):
            raise AssertionError(f"token outside the vocabulary: {tokens}")
        self.widths.append(len(tokens))
        self._clock.now += self._cost(len(tokens))
        rows = []
        for i, token in enumerate(tokens):
            self._tokens.append(token)
            if i >= len(tokens) - n_logits:
                with np.errstate(divide="ignore"):
                    rows.append(np.log(self._script(self._tokens)).astype(np.float32))
        return np.stack(rows) if rows else np.empty((0, self._n_vocab), np.float32)

    def rollback(self, n_tokens: int) -> None:
        if n_tokens > len(self._tokens):
            raise AssertionError(f"keep {n_tokens} of {len(self._tokens)}")
        if 0 < n_tokens < len(self._tokens) and not self.can_roll_back:
            raise RollbackError("scripted: cannot remove a part")
        del self._tokens[n_tokens:]


def pair_table(n_vocab: int, seed: int, sharpness: float = 1.5) -> NDArray[np.float64]:
    """Random next-token probabilities for each of the last two tokens, shape (n_vocab, n_vocab, n_vocab)."""
    weights = np.exp(sharpness * np.random.default_rng(seed).standard_normal((n_vocab,) * 3))
    table: NDArray[np.float64] = weights / weights.sum(axis=-1, keepdims=True)
    return table


def from_table(table: NDArray[np.float64]) -> Script:
    """The script that looks up the last two tokens."""
    size = table.shape[0]

    def script(tokens: Sequence[int]) -> NDArray[np.float64]:
        row: NDArray[np.float64] = table[(tokens[-2] if len(tokens) > 1 else 0) % size, tokens[-1] % size]
        return row

    return script


def deterministic(text: Sequence[int], n_vocab: int) -> Script:
    """The script that always goes on with `text`, by position."""

    def script(tokens: Sequence[int]) -> NDArray[np.float64]:
        row = np.full(n_vocab, 1e-9)
        row[text[len(tokens) % len(text)]] = 1.0
        return row

    return script
