"""Exact mode: the same bits for a row of logits, however many rows share its pass.

By default llama.cpp's logits for a row depend a little on how many rows are computed with it, so a token that was
verified among others may fall otherwise than one decoded alone where two tokens are nearly equally likely. On a CPU,
with flash attention, K in f16 and V in bf16, every width takes one path through the attention (ggml-cpu/ops.cpp:
`use_split_kv_path` splits a single token's attention from 512 cells on, for an f16 V only). The matrix products are
then what is left, and whether theirs do depends on the quantisation: so it is checked, on this machine and this file.

Contract: `obstacle` leaves the cache empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from specchat.engine.cache import Cache, Logits
from specchat.engine.context import Context
from specchat.engine.model import Model

TYPE_K: Final = "f16"
TYPE_V: Final = "bf16"
SUITED: Final = ("Q8_0", "Q4_0")  # whose kernels treat a row alike alone and among others; K-quants' and F16's do not

# 3 and 5 leave a remainder in kernels that take rows by fours, 33 is the widest pass that the policy asks for.
WIDTHS: Final = (2, 3, 4, 5, 8, 16, 33)
ROWS: Final = max(WIDTHS)
FEW_ROWS: Final = 16  # are enough for the narrow widths
# Tokens in the cache before the rows: few, and past the 512 cells from where attention may take another path.
DEPTHS: Final = (32, 600)


def sample_text() -> str:
    """Real text that is always there: some thousand tokens of this program's own source."""
    return Path(__file__).with_name("decoder.py").read_text("utf-8")


def obstacle(context: Context) -> str | None:
    """Why this model cannot be exact here, in a sentence; None where every width gave the same bits.

    Reads some 600 tokens, then decodes 33 rows alone and together, twice. Raises what the cache raises.
    """
    if context.rollback_limit is not None:
        return f"{context.model.path.name} cannot be exact here: {context.model.rollback_obstacle}"
    found = difference(context, context.model.tokenize(sample_text()))
    if found is None:
        return None
    width, size = found
    return (
        f"{context.model.path.name} cannot be exact here: among {width} tokens a row's logits are up to {size:.2g} off "
        f"those of the row alone; {_cure(context.model)}"
    )


def _cure(model: Model) -> str:
    if model.gpu_layers:
        return "this GPU's kernels differ by width (-ngl 0 computes on the CPU)"
    # llama.cpp's description ends with the quantisation: "qwen2 1.5B Q4_K - Medium".
    quantisation = model.description.split(" ", 2)[-1].removeprefix("(guessed) ")
    if quantisation in SUITED:
        return f"this processor's kernels for {quantisation} differ by width"
    return f"its quantisation is {quantisation}, whose kernels differ by width: a {' or '.join(SUITED)} file would do"


def difference(cache: Cache, tokens: Sequence[int]) -> tuple[int, float] | None:
    """The first width whose logits differ from those of single tokens, and by how much; None where none does."""
    cache.rollback(0)
    try:
        for depth in DEPTHS:
            # A short context is filled as far as it goes.
            base = min(depth, cache.n_ctx - ROWS, len(tokens) - ROWS)
            if base < len(cache.tokens):
                break
            cache.decode(tokens[len(cache.tokens) : base], 0)
            rows = tokens[base : base + ROWS]
            alone = in_widths(cache, rows, 1)
            for width in WIDTHS:
                n = ROWS if width > FEW_ROWS else FEW_ROWS
                together = in_widths(cache, rows[:n], width)
                if not np.array_equal(together, alone[:n]):
                    return width, float(np.abs(together - alone[:n]).max())
    finally:
        cache.rollback(0)
    return None


def in_widths(cache: Cache, tokens: Sequence[int], width: int) -> Logits:
    """The logits after each of `tokens`, shape (len(tokens), n_vocab), decoded `width` at a time; then taken back."""
    base = len(cache.tokens)
    try:
        return np.concatenate(list(_passes(cache, tokens, width)))
    finally:
        cache.rollback(base)


def _passes(cache: Cache, tokens: Sequence[int], width: int) -> Iterator[Logits]:
    for start in range(0, len(tokens), width):
        part = tokens[start : start + width]
        yield cache.decode(part, len(part)).copy()
