"""What the decoder needs of one model with its KV cache; engine/llama.py's Context is one, tests script others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]


class Cancelled(Exception):
    """The user stopped the reply while a pass was under way; the cache was rolled back to where it was before it."""


class RollbackError(Exception):
    """The model cannot remove a part of its cache (recurrent, hybrid, windowed); the cache is unchanged."""


class Cache(Protocol):
    """One model with its KV cache."""

    @property
    def n_ctx(self) -> int:
        """Cells in the cache."""

    @property
    def n_vocab(self) -> int:
        """Entries of one row of logits."""

    @property
    def tokens(self) -> Sequence[int]:
        """The tokens that the cache holds, in order (not to be changed by the caller)."""

    def decode(self, tokens: Sequence[int], n_logits: int) -> Logits:
        """Append `tokens` to the cache, in as many batches as needed.

        Returns the logits after each of the last `n_logits` tokens, shape (n_logits, n_vocab), float32; may be a view
        that the next call overwrites. Raises Cancelled (cache as before the call), or an engine error.
        """

    def rollback(self, n_tokens: int) -> None:
        """Keep the first `n_tokens` of the cache. Raises RollbackError when the model cannot.

        Keeping everything always succeeds, and so does keeping nothing.
        """
