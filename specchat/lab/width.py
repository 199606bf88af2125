"""Width noise: how much llama.cpp's own logits for a row depend on how many rows share its pass.

No speculation is involved: real text is read, and the same rows are decoded alone and then several at a time over the
same cache. Total variation is half the sum of |p - p'| over the vocabulary: the most by which any event's probability
differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from specchat.engine.cache import Cache, Logits
from specchat.engine.exact import in_widths

WIDTHS: Final = (2, 4, 8, 16)
LENGTHS: Final = (100, 400, 700, 1400)  # tokens in the cache; from 512 cells on attention may take another path
ROWS: Final = 32


@dataclass(frozen=True, slots=True)
class Noise:
    """Rows alone against the same rows among others, at one width and context length or over several."""

    width: int  # 0: over several
    length: int
    rows: int
    identical: int  # rows that agree to the last bit
    mean_variation: float
    max_variation: float
    max_difference: float  # of any logit
    flips: int  # rows whose likeliest token is another

    @property
    def exact(self) -> bool:
        return self.identical == self.rows


def measure(
    cache: Cache,
    tokens: Sequence[int],
    lengths: Sequence[int] = LENGTHS,
    widths: Sequence[int] = WIDTHS,
    rows: int = ROWS,
) -> Iterator[Noise]:
    """One figure for each context length that fits and each width; `tokens` is real text. Empties the cache."""
    cache.rollback(0)
    for length in sorted(lengths):
        if length + rows > min(cache.n_ctx, len(tokens)):
            break
        cache.decode(tokens[len(cache.tokens) : length], 0)
        here = tokens[length : length + rows]
        alone = in_widths(cache, here, 1)
        for width in widths:
            yield compare(alone, in_widths(cache, here, width), width, length)
    cache.rollback(0)


def compare(alone: Logits, among: Logits, width: int, length: int) -> Noise:
    """Two versions of the same rows of logits, shape (rows, n_vocab)."""
    variation = 0.5 * np.abs(_softmax(alone) - _softmax(among)).sum(axis=1)
    return Noise(
        width=width,
        length=length,
        rows=len(alone),
        identical=int((alone == among).all(axis=1).sum()),
        mean_variation=float(variation.mean()),
        max_variation=float(variation.max()),
        max_difference=float(np.abs(alone - among).max()),
        flips=int((alone.argmax(axis=1) != among.argmax(axis=1)).sum()),
    )


def overall(parts: Sequence[Noise]) -> Noise:
    """All of them as one; no rows at all are no noise."""
    rows = sum(part.rows for part in parts)
    return Noise(
        width=0,
        length=0,
        rows=rows,
        identical=sum(part.identical for part in parts),
        mean_variation=sum(part.mean_variation * part.rows for part in parts) / max(1, rows),
        max_variation=max((part.max_variation for part in parts), default=0.0),
        max_difference=max((part.max_difference for part in parts), default=0.0),
        flips=sum(part.flips for part in parts),
    )


def _softmax(logits: Logits) -> NDArray[np.float64]:
    weights = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    result: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return result
