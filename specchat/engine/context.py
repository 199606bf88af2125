"""A key-value cache over a model, driven by the decoder. Part of engine/llama.py, which see.

Contract: a `Context` satisfies `engine.cache.Cache`; `tokens` is always what the native cache really holds, whatever
was raised.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

import numpy as np

from specchat.engine.cache import Cancelled, Logits, RollbackError
from specchat.engine.model import Model, ModelError, OutOfMemory, lacks_memory, last_line
from specchat.engine.native import api, log
from specchat.engine.threads import default_threads

# Rows of logits that one pass may ask for. llama.cpp sizes its buffers by it (152k entries x 4 bytes a row, twice) and
# ends the process beyond it, so `decode` splits such calls.
N_OUTPUTS_MAX: Final = 33
# A pass longer than this is worth interrupting; llama.cpp asks before each of some 500 nodes of its graph, which
# costs Python 0.2 ms a pass.
_SLOW_SECONDS: Final = 0.1
_SLOW_TOKENS: Final = 16
# ggml.h: enum ggml_type; those that llama.cpp's own programs offer for the cache.
CACHE_TYPES: Final = {
    "f32": 0,
    "f16": 1,
    "bf16": 30,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "iq4_nl": 20,
}
_FLASH: Final = {None: -1, False: 0, True: 1}  # llama.h: enum llama_flash_attn_type; None lets llama.cpp decide


class Context:
    """A cache over a model, one sequence long."""

    def __init__(
        self,
        model: Model,
        *,
        n_ctx: int | None = None,
        n_batch: int | None = None,
        threads: int | None = None,
        type_k: str = "f16",
        type_v: str = "f16",
        flash_attention: bool | None = None,
        n_outputs_max: int = N_OUTPUTS_MAX,
        snapshots: int = 0,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Allocate a cache of `n_ctx` tokens (None: as many as the model was trained for).

        `n_batch` is the most tokens of one native call (None: 512 on a GPU, 256 otherwise).
        `snapshots` asks for the states of that many last tokens where the model is recurrent or hybrid and llama.cpp
        can keep them; `rollback_limit` says what came of it. `cancelled` is polled inside long passes and before each
        batch. Raises ModelError, mostly for want of memory.
        """
        if model.handle is None or model.vocab_only:
            raise ValueError("the model is closed, or was loaded for its vocabulary only")
        self.model = model
        self.n_vocab = model.n_vocab
        self.n_ctx = n_ctx or model.n_ctx_train
        self.threads = threads or default_threads()
        # All else that decides what a pass costs, in the order of a plan's placement.
        self.setting = (model.gpu_layers, model.devices, type_k, type_v, flash_attention, snapshots)
        self._cancelled = cancelled
        parameters = api.llama_context_default_params()
        parameters.n_ctx = self.n_ctx
        parameters.n_batch = parameters.n_ubatch = min(n_batch or _n_batch(model), self.n_ctx)
        parameters.n_outputs_max = self._n_outputs_max = min(n_outputs_max, parameters.n_batch)
        parameters.n_rs_seq = snapshots
        parameters.n_threads = parameters.n_threads_batch = self.threads
        parameters.type_k, parameters.type_v = _cache_type(type_k), _cache_type(type_v)
        parameters.flash_attn_type = _FLASH[flash_attention]
        parameters.swa_full = True  # the default, and what makes sliding-window models roll back
        log.forget()
        handle = api.llama_init_from_model(model.handle, parameters)
        if not handle:  # using it would be a segmentation fault
            raise _context_failure(model, self.n_ctx, log.errors)
        self._handle: int | None = handle
        self._memory = api.llama_get_memory(handle)
        if not self._memory:
            api.llama_free(handle)
            raise ModelError(f"{model.path.name} cannot chat: it has no cache, as models for embeddings have none")
        self._snapshots: int = api.llama_n_rs_seq(handle) if model.is_recurrent else 0
        self._batch = _Batch(api.llama_n_batch(handle), self.n_ctx)
        self._tokens: list[int] = []
        self._removable = 0  # recurrent: how many of the last tokens have a state to go back to
        self._logits = np.empty((0, self.n_vocab), np.float32)
        self._logits_address = 0
        self._last_pass = 0.0  # seconds
        self._watching = False
        self._abort_callback = api.ggml_abort_callback(lambda _: self._cancelled())
        self._no_callback = api.ggml_abort_callback()
        model.contexts.add(self)

    @property
    def tokens(self) -> Sequence[int]:
        """The tokens that the cache holds, in order."""
        return self._tokens

    @property
    def n_batch(self) -> int:
        """The most tokens that one native call takes."""
        return self._batch.size

    @property
    def rollback_limit(self) -> int | None:
        """How many tokens of the latest `decode` can be taken back (fewer than it had); None: any number, always."""
        return self._snapshots if self.model.is_recurrent else None

    def decode(self, tokens: Sequence[int], n_logits: int) -> Logits:
        """See `Cache.decode`. The rows are read-only, and valid until the next call.

        Where the model cannot roll back, a cancelled or failed call empties the cache.
        """
        if self._handle is None:
            raise ModelError(f"{self.model.path.name} was released")
        base = len(self._tokens)
        if base + len(tokens) > self.n_ctx:
            raise ModelError(
                f"the context of {self.model.path.name} is full: {base + len(tokens):,} tokens, {self.n_ctx:,} cells"
            )
        first_row = len(tokens) - n_logits
        several = n_logits > self._n_outputs_max
        rows: list[Logits] = []
        start = 0
        try:
            while start < len(tokens):
                stop = min(start + self._batch.size, len(tokens), max(start, first_row) + self._n_outputs_max)
                wanted = max(0, stop - max(start, first_row))
                part = self._pass(tokens[start:stop], base + start, wanted)
                if wanted:
                    rows.append(part.copy() if several or stop < len(tokens) else part)
                start = stop
        except BaseException:
            self._restore(base)
            raise
        self._tokens.extend(tokens)
        return rows[0] if len(rows) == 1 else np.concatenate(rows) if rows else self._logits[:0]

    def rollback(self, n_tokens: int) -> None:
        """See `Cache.rollback`."""
        excess = len(self._tokens) - n_tokens
        if excess <= 0:
            return
        if n_tokens == 0:
            api.llama_memory_clear(self._memory, False)
        elif not self._remove_from(n_tokens, excess):
            raise RollbackError(self.model.rollback_obstacle or f"{self.model.path.name} refused to roll back")
        del self._tokens[n_tokens:]
        self._removable = 0

    def close(self) -> None:
        """Give the memory back. Safe to repeat."""
        handle, self._handle = self._handle, None
        if handle:
            self._tokens.clear()
            self._logits, self._logits_address = self._logits[:0].copy(), 0
            self._batch.free()
            api.llama_free(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def _pass(self, tokens: Sequence[int], position: int, wanted: int) -> Logits:
        """One native call; a view on the last `wanted` rows."""
        if self._cancelled():
            raise Cancelled
        n = len(tokens)
        self._watch(n)
        self._batch.fill(tokens, position, wanted)
        log.forget()
        started = time.perf_counter()
        code = api.llama_decode(self._handle, self._batch.native)
        if code != 0:
            raise Cancelled if code == 2 else self._decode_failure(code)
        view = self._rows(wanted)
        self._last_pass = time.perf_counter() - started
        self._removable = min(n - 1, self._snapshots)
        return view

    def _rows(self, wanted: int) -> Logits:
        if not wanted:
            # Otherwise a GPU would queue a whole prompt, and neither progress nor cancelling would mean anything.
            api.llama_synchronize(self._handle)
            return self._logits[:0]
        pointer = api.llama_get_logits(self._handle)
        address = ctypes.addressof(pointer.contents)
        if address != self._logits_address or len(self._logits) < wanted:
            # The buffer grows with the rows asked for: only `wanted` of them are known to be there.
            self._logits = np.ctypeslib.as_array(pointer, (wanted, self.n_vocab))
            self._logits.flags.writeable = False
            self._logits_address = address
        return self._logits[:wanted]

    def _watch(self, n: int) -> None:
        """Have llama.cpp ask inside the coming pass of `n` tokens whether to stop, if that is worth it.

        Never inside a short pass of a model that could not return to where it was before.
        """
        watch = n > _SLOW_TOKENS or self._last_pass > _SLOW_SECONDS
        if self.model.is_recurrent and n <= self._snapshots + 1:
            watch = False
        if watch != self._watching:
            self._watching = watch
            api.llama_set_abort_callback(self._handle, self._abort_callback if watch else self._no_callback, None)

    def _remove_from(self, n_tokens: int, excess: int) -> bool:
        # llama.cpp would also go back to a snapshot that the latest pass did not write, and be wrong in silence.
        if self.model.is_recurrent and excess > self._removable:
            return False
        return bool(api.llama_memory_seq_rm(self._memory, 0, n_tokens, -1))

    def _restore(self, base: int) -> None:
        """After a failed call: the cache as it was before it, or else empty."""
        possible = base > 0 and not self.model.is_recurrent
        if not possible or not api.llama_memory_seq_rm(self._memory, 0, base, -1):
            api.llama_memory_clear(self._memory, False)
            self._tokens.clear()
        self._removable = 0

    def _decode_failure(self, code: int) -> ModelError:
        name, errors = self.model.path.name, log.errors
        if code == 1:
            return ModelError(f"llama.cpp found no room for more tokens in the cache of {name}")
        if code == -1:
            return ModelError(f"llama.cpp refused a batch of tokens for {name}: {last_line(errors)}")
        if code == -2 or lacks_memory(errors):
            return OutOfMemory(f"there was not enough memory to compute with {name}")
        return ModelError(f"llama.cpp could not compute with {name}, perhaps for want of memory: {last_line(errors)}")


class _Batch:
    """One native batch, allocated once; its arrays are filled through numpy."""

    def __init__(self, size: int, n_ctx: int) -> None:
        self.size = size
        self.native = api.llama_batch_init(size, 0, 1)
        self._token = np.ctypeslib.as_array(self.native.token, (size,))
        self._position = np.ctypeslib.as_array(self.native.pos, (size,))
        self._wanted = np.ctypeslib.as_array(self.native.logits, (size,))
        self._positions = np.arange(n_ctx, dtype=np.int32)
        for i in range(size):
            self.native.n_seq_id[i] = 1
            self.native.seq_id[i][0] = 0

    def fill(self, tokens: Sequence[int], position: int, wanted: int) -> None:
        n = len(tokens)
        self.native.n_tokens = n
        self._token[:n] = tokens
        self._position[:n] = self._positions[position : position + n]
        self._wanted[: n - wanted] = 0
        self._wanted[n - wanted : n] = 1

    def free(self) -> None:
        api.llama_batch_free(self.native)


def _n_batch(model: Model) -> int:
    # Half of llama.cpp's default on a CPU: it can only be interrupted between two operations, and the largest of them,
    # over 512 tokens of a 7B model on two cores, takes half a second. Reading is no slower for it.
    return 512 if model.gpu_layers else 256


def _context_failure(model: Model, n_ctx: int, errors: str) -> ModelError:
    if lacks_memory(errors) or "reserve" in errors:
        return OutOfMemory(
            f"there is not enough memory for a context of {n_ctx:,} tokens with {model.path.name}: "
            "ask for a shorter one"
        )
    return ModelError(f"llama.cpp cannot make a context for {model.path.name}: {last_line(errors)}")


def _cache_type(name: str) -> int:
    if name not in CACHE_TYPES:
        raise ModelError(f"there is no cache type {name}; there is {', '.join(CACHE_TYPES)}")
    return CACHE_TYPES[name]
