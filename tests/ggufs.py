"""Tiny GGUF files with random weights, for tests of everything that reads, tokenises with or decodes with a model.

Contract: the same arguments give the same bytes. A file is some hundred kilobytes and loads in milliseconds; what such
a model says is noise, but it says it deterministically, through the same native code as a real one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, TokenType
from numpy.typing import NDArray

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = (
    int(kind)
    for kind in (TokenType.NORMAL, TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.BYTE)
)

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizer part of a file. `kind` is "gpt2" (byte-level BPE) or "llama" (SentencePiece)."""

    tokens: tuple[str, ...]
    types: tuple[int, ...]
    kind: str = "gpt2"
    merges: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    bos: int | None = None
    eos: int | None = None
    add_bos: bool = False
    add_eos: bool = False
    add_space_prefix: bool | None = None

    def with_token(self, number: int, text: str, kind: int | None = None) -> Vocabulary:
        """The same vocabulary with another text (and type) at one id."""
        tokens, types = list(self.tokens), list(self.types)
        tokens[number] = text
        types[number] = types[number] if kind is None else kind
        return replace(self, tokens=tuple(tokens), types=tuple(types))

    def padded(self, size: int) -> Vocabulary:
        """The same vocabulary with unused entries at its end, up to `size`."""
        extra = range(len(self.tokens), size)
        scores = (*self.scores, *(-1000.0 for _ in extra)) if self.scores else ()
        return replace(
            self,
            tokens=(*self.tokens, *(f"[PAD{i}]" for i in extra)),
            types=(*self.types, *(int(TokenType.UNUSED) for _ in extra)),
            scores=scores,
        )

    def id(self, text: str) -> int:
        return self.tokens.index(text)


def bytes_to_unicode() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte: what byte-level vocabularies spell their tokens with."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in table)
    return table | {byte: chr(256 + i) for i, byte in enumerate(others)}


def bpe(
    special: Sequence[str] = ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    user_defined: Sequence[str] = (),
    words: Sequence[str] = ("he", "ll", "hell", "Ġt"),
    *,
    add_bos: bool = False,
) -> Vocabulary:
    """Byte-level BPE: `special` tokens first (BOS the first, EOS the last), then `user_defined`, bytes and `words`."""
    letters = list(bytes_to_unicode().values())
    known = set(letters)
    merges = []
    for word in words:
        split = next(i for i in range(1, len(word)) if word[:i] in known and word[i:] in known)
        merges.append(f"{word[:split]} {word[split:]}")
        known.add(word)
    tokens = (*special, *user_defined, *letters, *words)
    types = (
        *(CONTROL for _ in special),
        *(USER_DEFINED for _ in user_defined),
        *(NORMAL for _ in (*letters, *words)),
    )
    return Vocabulary(tokens, types, "gpt2", tuple(merges), bos=0, eos=len(special) - 1, add_bos=add_bos)


def sentencepiece(
    special: Sequence[str] = (),
    user_defined: Sequence[str] = (),
    words: Sequence[str] = ("▁t", "he", "▁the", "ll", "▁he", "▁hell", "▁hello"),
    *,
    add_bos: bool = True,
    add_space_prefix: bool | None = None,
) -> Vocabulary:
    """A SentencePiece vocabulary as Llama 2 has: <unk>, <s>, </s>, more specials, bytes, letters, words."""
    letters = ("▁", *"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ<>|/_.!:")
    bytes_ = tuple(f"<0x{byte:02X}>" for byte in range(256))
    tokens = ("<unk>", "<s>", "</s>", *special, *user_defined, *bytes_, *letters, *words)
    types = (
        UNKNOWN,
        CONTROL,
        CONTROL,
        *(CONTROL for _ in special),
        *(USER_DEFINED for _ in user_defined),
        *(BYTE for _ in bytes_),
        *(NORMAL for _ in (*letters, *words)),
    )
    scores = tuple(
        -1.0 / (1 + len(token)) if kind == NORMAL else 0.0 for token, kind in zip(tokens, types, strict=True)
    )
    return Vocabulary(
        tokens, types, "llama", scores=scores, bos=1, eos=2, add_bos=add_bos, add_space_prefix=add_space_prefix
    )


@dataclass(frozen=True)
class Shape:
    """The size of the model around the vocabulary. Widths are multiples of 32, as block quantisation wants."""

    n_embd: int = 64
    n_head: int = 4
    n_layer: int = 2
    n_ff: int = 128
    n_ctx_train: int = 512
    seed: int = 0
    quantisation: str = "F32"
    sliding_window: int = 16  # gemma3 only


@dataclass
class _File:
    writer: gguf.GGUFWriter
    shape: Shape
    random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.shape.seed)

    def matrix(self, name: str, rows: int, columns: int, scale: float = 1.0) -> None:
        values = self.random.standard_normal((rows, columns), dtype=np.float32) * (scale / np.sqrt(columns))
        kind = GGMLQuantizationType[self.shape.quantisation]
        self.writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    def values(self, name: str, values: NDArray[np.floating[Any]]) -> None:
        self.writer.add_tensor(name, values.astype(np.float32))

    def ones(self, name: str, n: int) -> None:
        self.values(name, np.ones(n, np.float32))


def write(
    path: Path,
    vocabulary: Vocabulary | None = None,
    *,
    architecture: str = "llama",
    shape: Shape | None = None,
    template: str | None = CHATML,
    name: str | None = "tiny",
    metadata: dict[str, str] | None = None,
) -> Path:
    """Write one file. `architecture`: llama, gemma3 (sliding window), mamba (recurrent), lfm2 (hybrid with snapshots),
    bert (an encoder for embeddings), or any other name (a llama that llama.cpp refuses)."""
    vocabulary = vocabulary or bpe()
    shape = shape or Shape()
    writer = gguf.GGUFWriter(path, architecture)
    file = _File(writer, shape)
    if name is not None:
        writer.add_name(name)
    writer.add_context_length(shape.n_ctx_train)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_layer_norm_rms_eps(1e-5)
    _vocabulary(writer, vocabulary, template)
    for key, value in (metadata or {}).items():
        writer.add_string(key, value)
    file.matrix("token_embd.weight", len(vocabulary.tokens), shape.n_embd, scale=8.0)
    if architecture != "bert":
        file.matrix("output.weight", len(vocabulary.tokens), shape.n_embd, scale=3.0)
    body: Callable[[_File], None] = {"mamba": _mamba, "lfm2": _lfm2, "gemma3": _gemma3, "bert": _bert}.get(
        architecture, _llama
    )
    body(file)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _vocabulary(writer: Any, vocabulary: Vocabulary, template: str | None) -> None:
    writer.add_tokenizer_model(vocabulary.kind)
    writer.add_token_list(list(vocabulary.tokens))
    writer.add_token_types(list(vocabulary.types))
    if vocabulary.kind == "gpt2":
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_merges(list(vocabulary.merges))
    if vocabulary.scores:
        writer.add_token_scores(list(vocabulary.scores))
    if vocabulary.bos is not None:
        writer.add_bos_token_id(vocabulary.bos)
    if vocabulary.eos is not None:
        writer.add_eos_token_id(vocabulary.eos)
    writer.add_add_bos_token(vocabulary.add_bos)
    writer.add_add_eos_token(vocabulary.add_eos)
    if vocabulary.add_space_prefix is not None:
        writer.add_add_space_prefix(vocabulary.add_space_prefix)
    if template is not None:
        writer.add_chat_template(template)


def _llama(file: _File) -> None:
    shape = file.shape
    _attention_keys(file, shape.n_head)
    file.writer.add_rope_dimension_count(shape.n_embd // shape.n_head)
    file.ones("output_norm.weight", shape.n_embd)
    for i in range(shape.n_layer):
        _attention(file, f"blk.{i}")
        _feed_forward(file, f"blk.{i}")


def _gemma3(file: _File) -> None:
    shape = file.shape
    _attention_keys(file, shape.n_head)
    file.writer.add_key_length(shape.n_embd // shape.n_head)
    file.writer.add_value_length(shape.n_embd // shape.n_head)
    file.writer.add_sliding_window(shape.sliding_window)
    file.ones("output_norm.weight", shape.n_embd)
    for i in range(shape.n_layer):
        _attention(file, f"blk.{i}")
        _feed_forward(file, f"blk.{i}")
        _head_norms(file, f"blk.{i}")
        file.ones(f"blk.{i}.post_attention_norm.weight", shape.n_embd)
        file.ones(f"blk.{i}.post_ffw_norm.weight", shape.n_embd)


def _lfm2(file: _File) -> None:
    shape = file.shape
    # Every other layer is a short convolution with a state: it is told by having no key-value heads.
    recurrent = [i % 2 == 0 for i in range(shape.n_layer)]
    _attention_keys(file, [0 if is_recurrent else shape.n_head for is_recurrent in recurrent])
    file.writer.add_shortconv_l_cache(3)
    file.ones("token_embd_norm.weight", shape.n_embd)
    for i, is_recurrent in enumerate(recurrent):
        if is_recurrent:
            file.ones(f"blk.{i}.attn_norm.weight", shape.n_embd)
            file.values(f"blk.{i}.shortconv.conv.weight", file.random.standard_normal((shape.n_embd, 3)))
            file.matrix(f"blk.{i}.shortconv.in_proj.weight", 3 * shape.n_embd, shape.n_embd)
            file.matrix(f"blk.{i}.shortconv.out_proj.weight", shape.n_embd, shape.n_embd)
        else:
            _attention(file, f"blk.{i}")
            _head_norms(file, f"blk.{i}")
        _feed_forward(file, f"blk.{i}")


def _mamba(file: _File) -> None:
    shape, writer = file.shape, file.writer
    inner, state, rank = 2 * shape.n_embd, 16, 4
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(rank)
    file.ones("output_norm.weight", shape.n_embd)
    for i in range(shape.n_layer):
        block = f"blk.{i}"
        file.ones(f"{block}.attn_norm.weight", shape.n_embd)
        file.matrix(f"{block}.ssm_in.weight", 2 * inner, shape.n_embd)
        file.values(f"{block}.ssm_conv1d.weight", file.random.standard_normal((inner, 4)))
        file.values(f"{block}.ssm_conv1d.bias", np.zeros(inner, np.float32))
        file.matrix(f"{block}.ssm_x.weight", rank + 2 * state, inner)
        file.values(f"{block}.ssm_dt.weight", file.random.standard_normal((inner, rank)))
        file.values(f"{block}.ssm_dt.bias", np.zeros(inner, np.float32))
        file.values(f"{block}.ssm_a", -np.tile(np.arange(1, state + 1, dtype=np.float32), (inner, 1)))
        file.ones(f"{block}.ssm_d", inner)
        file.matrix(f"{block}.ssm_out.weight", shape.n_embd, inner)


def _bert(file: _File) -> None:
    shape, writer = file.shape, file.writer
    _attention_keys(file, shape.n_head)
    writer.add_causal_attention(False)
    writer.add_layer_norm_eps(1e-5)
    writer.add_token_type_count(2)
    file.matrix("position_embd.weight", shape.n_ctx_train, shape.n_embd)
    for i in range(shape.n_layer):
        block = f"blk.{i}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            file.matrix(f"{block}.{name}.weight", shape.n_embd, shape.n_embd)
        file.matrix(f"{block}.ffn_up.weight", shape.n_ff, shape.n_embd)
        file.matrix(f"{block}.ffn_down.weight", shape.n_embd, shape.n_ff)
        for norm in ("attn_output_norm", "layer_output_norm"):
            _layer_norm(file, f"{block}.{norm}")
    _layer_norm(file, "token_embd_norm")


def _layer_norm(file: _File, name: str) -> None:
    file.ones(f"{name}.weight", file.shape.n_embd)
    file.values(f"{name}.bias", np.zeros(file.shape.n_embd, np.float32))


def _attention_keys(file: _File, kv_heads: int | list[int]) -> None:
    file.writer.add_head_count(file.shape.n_head)
    file.writer.add_head_count_kv(kv_heads)
    file.writer.add_feed_forward_length(file.shape.n_ff)


def _attention(file: _File, block: str) -> None:
    n = file.shape.n_embd
    file.ones(f"{block}.attn_norm.weight", n)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        file.matrix(f"{block}.{name}.weight", n, n, scale=2.0)


def _head_norms(file: _File, block: str) -> None:
    head = file.shape.n_embd // file.shape.n_head
    file.ones(f"{block}.attn_q_norm.weight", head)
    file.ones(f"{block}.attn_k_norm.weight", head)


def _feed_forward(file: _File, block: str) -> None:
    n, n_ff = file.shape.n_embd, file.shape.n_ff
    file.ones(f"{block}.ffn_norm.weight", n)
    file.matrix(f"{block}.ffn_gate.weight", n_ff, n)
    file.matrix(f"{block}.ffn_up.weight", n_ff, n)
    file.matrix(f"{block}.ffn_down.weight", n, n_ff)


def truncated(path: Path, source: Path, size: int) -> Path:
    """The first `size` bytes of another file (negative: without that many at its end)."""
    path.write_bytes(source.read_bytes()[:size])
    return path
