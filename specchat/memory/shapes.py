"""What one model needs: weights, cache, running state, buffers, by the numbers in its GGUF header.

Contract: follows llama.cpp's own allocation (src/llama-kv-cache.cpp, llama-memory-recurrent.cpp, llama-hparams.cpp,
llama-model.cpp). Weights, caches and logits come out to the byte; the compute buffer, which llama.cpp finds by
laying out the graph, is modelled by its largest tensors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

CELLS: Final = 256  # llama-context.cpp pads the context to a multiple of this
# Bytes of one element: ggml's blocks of 32 carry one or two 2-byte scales.
CACHE_BYTES: Final[Mapping[str, float]] = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}
_BLOCK: Final = re.compile(r"blk\.(\d+)\.")
_FLOAT: Final = 4


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer. Widths are elements of one cell: key-value heads x key (value) length; 0 where it keeps none."""

    weights: int
    keys: int
    values: int
    state: int = 0  # bytes of the running state that a recurrent layer keeps instead


@dataclass(frozen=True, slots=True)
class Shape:
    """Everything about a model that decides what memory it takes."""

    name: str
    n_vocab: int
    n_embd: int
    n_ff: int  # the widest feed-forward part of a pass, over all experts used at once
    n_head: int
    n_ctx_train: int
    layers: tuple[Layer, ...]
    input_bytes: int  # the token embedding, which stays in RAM
    output_bytes: int  # the output matrix and what else is no layer's
    is_tied: bool  # the output matrix is the token embedding: held twice where it is offloaded
    windowed: bool = False  # sliding windows: each pass needs two attention masks

    @property
    def weights(self) -> int:
        """Bytes of all weights, counted once: the file's size without its header."""
        return self.input_bytes + self.output_bytes + sum(layer.weights for layer in self.layers)

    @property
    def is_hybrid(self) -> bool:
        """Whether other layers keep a key-value cache beside that state."""
        return self.is_recurrent and any(layer.keys for layer in self.layers)

    @property
    def is_recurrent(self) -> bool:
        """Whether some layer carries a running state (recurrent and hybrid models)."""
        return any(layer.state for layer in self.layers)


@dataclass(frozen=True, slots=True)
class Pass:
    """The largest pass through a model: tokens at once, rows of logits asked for, flash attention or not."""

    n_batch: int
    n_outputs: int
    flash_attention: bool = True


def shape(name: str, metadata: Mapping[str, Any], lengths: Mapping[str, int], tensors: Mapping[str, int]) -> Shape:
    """A model's shape from its header (see `specchat.engine.header`). Missing fields count as llama.cpp counts them."""
    fields = _Fields(metadata)
    n_layer = fields.number("block_count") - fields.number("nextn_predict_layers")  # the latter are not loaded
    weights, rest = _by_layer(tensors, n_layer)
    embedding = rest.pop("token_embd.weight", 0)
    return Shape(
        name=name,
        n_vocab=lengths.get("tokenizer.ggml.tokens", fields.number("vocab_size")),
        n_embd=fields.number("embedding_length"),
        n_ff=_feed_forward(fields, n_layer),
        n_head=max(fields.each("attention.head_count", n_layer), default=0),
        n_ctx_train=fields.number("context_length"),
        layers=tuple(
            Layer(weights[i], keys, values, state) for i, (keys, values, state) in enumerate(_cells(fields, n_layer))
        ),
        input_bytes=embedding,
        output_bytes=sum(rest.values()),
        is_tied="output.weight" not in rest,
        windowed=fields.number("attention.sliding_window") > 0,
    )


class _Fields:
    """The numbers under the architecture's own prefix."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self.architecture = str(metadata.get("general.architecture", ""))

    def __contains__(self, key: str) -> bool:
        return f"{self.architecture}.{key}" in self._metadata

    def number(self, key: str, default: int = 0) -> int:
        """A scalar (the largest of an array)."""
        value = self._metadata.get(f"{self.architecture}.{key}", default)
        return int(max(value, default=default) if isinstance(value, tuple) else value)

    def each(self, key: str, n_layer: int, default: int = 0) -> list[int]:
        """A value for every layer: an array's, or the same for all."""
        value = self._metadata.get(f"{self.architecture}.{key}", default)
        if isinstance(value, tuple):
            return [int(entry) for entry in value[:n_layer]] + [default] * (n_layer - len(value))
        return [int(value)] * n_layer


def _by_layer(tensors: Mapping[str, int], n_layer: int) -> tuple[list[int], dict[str, int]]:
    weights, rest = [0] * n_layer, {}
    for name, size in tensors.items():
        block = _BLOCK.match(name)
        if block is None:
            rest[name] = size
        elif int(block[1]) < n_layer:
            weights[int(block[1])] += size
    return weights, rest


def _cells(fields: _Fields, n_layer: int) -> list[tuple[int, int, int]]:
    """(key width, value width, bytes of state) of every layer."""
    heads = fields.each("attention.head_count", n_layer)
    kv_heads = fields.each("attention.head_count_kv", n_layer) if "attention.head_count_kv" in fields else heads
    usual = fields.number("embedding_length") // max(heads, default=0) if any(heads) else 0
    key_length = fields.number("attention.key_length", usual)
    # Latent attention caches one compressed row, from which the values are computed.
    latent = "attention.key_length_mla" in fields
    value_length = 0 if latent else fields.number("attention.value_length", usual)
    key_length = max(key_length, fields.number("attention.key_length_swa"))
    value_length = 0 if latent else max(value_length, fields.number("attention.value_length_swa"))
    cached = n_layer - fields.number("attention.shared_kv_layers")  # the last layers use the cache of earlier ones
    state = _state_bytes(fields, max(heads, default=0))
    # These hybrids attend in every fourth layer unless the file says otherwise.
    every = fields.number(
        "full_attention_interval", 4 if fields.architecture.startswith(("qwen3next", "qwen35")) else 0
    )

    def one(i: int) -> tuple[int, int, int]:
        recurrent = state > 0 and (kv_heads[i] == 0 or (every > 0 and (i + 1) % every != 0))
        if recurrent:
            return 0, 0, state
        return (kv_heads[i] * key_length, kv_heads[i] * value_length, 0) if i < cached else (0, 0, 0)

    return [one(i) for i in range(n_layer)]


def _state_bytes(fields: _Fields, n_head: int) -> int:
    """The state of one recurrent layer for one sequence, in f32 (llama-hparams.cpp: n_embd_r, n_embd_s)."""
    n_embd = fields.number("embedding_length")
    if wkv := fields.number("wkv.head_size"):
        return _FLOAT * (fields.number("token_shift_count", 2) * n_embd + n_embd * wkv)
    if conv := fields.number("shortconv.l_cache"):
        return _FLOAT * n_embd * (conv - 1)
    if kda := fields.number("kda.head_dim"):
        kernel = fields.number("ssm.conv_kernel", 4)
        return _FLOAT * (3 * (kernel - 1) * n_head * kda + kda * kda * n_head)
    inner, states = fields.number("ssm.inner_size"), fields.number("ssm.state_size")
    rolled = max(0, fields.number("ssm.conv_kernel") - 1) * (inner + 2 * fields.number("ssm.group_count") * states)
    return _FLOAT * (rolled + states * inner)


def _feed_forward(fields: _Fields, n_layer: int) -> int:
    dense = max(fields.each("feed_forward_length", n_layer), default=0)
    experts = fields.number("expert_feed_forward_length", dense if fields.number("expert_count") else 0)
    used = experts * fields.number("expert_used_count") + fields.number("expert_shared_feed_forward_length")
    return max(dense, used, 2 * fields.number("ssm.inner_size"))


# ---- what that comes to


def cells(n_ctx: int) -> int:
    """Cells of the cache that a context of that length gets."""
    return -(-n_ctx // CELLS) * CELLS


def cache_bytes(layer: Layer, n_ctx: int, type_k: str, type_v: str, snapshots: int = 0) -> int:
    """One layer's cache or state. A layer with a sliding window keeps every cell too, or it could not roll back."""
    width = layer.keys * CACHE_BYTES[type_k] + layer.values * CACHE_BYTES[type_v]
    return round(cells(n_ctx) * width) + layer.state * (1 + snapshots)


def logits_bytes(of: Shape, run: Pass) -> int:
    """The rows of logits that a pass hands over, always in RAM."""
    return of.n_vocab * run.n_outputs * _FLOAT


def mask_bytes(of: Shape, n_ctx: int, run: Pass) -> int:
    """The attention masks of one pass: f16 for flash attention, f32 otherwise."""
    kept = any(layer.keys for layer in of.layers)
    one = run.n_batch * cells(n_ctx) * (2 if run.flash_attention else _FLOAT) if kept else 0
    return one * (2 if of.windowed else 1)


def compute_bytes(of: Shape, n_ctx: int, run: Pass) -> int:
    """The compute buffer: masks, and the larger of the logits and the widest layer's activations."""
    residual = run.n_batch * of.n_embd * _FLOAT
    attention = 0 if run.flash_attention else of.n_head * cells(n_ctx) * run.n_batch * _FLOAT
    layer = 2 * residual + 2 * run.n_batch * of.n_ff * _FLOAT + attention
    logits = residual + run.n_outputs * (of.n_vocab + of.n_embd) * _FLOAT
    return mask_bytes(of, n_ctx, run) + max(layer, logits)
