"""A GGUF file: loading it, what its header says, its tokens. Part of engine/llama.py, which see.

Contract: whatever the native library refuses becomes a `ModelError` with one sentence that names the file.
"""

from __future__ import annotations

import ctypes
import os
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

import numpy as np

from specchat import magic
from specchat.engine.cache import Cancelled
from specchat.engine.native import api, describe, device_handles, devices, log
from specchat.errors import SpecchatError

ALL_LAYERS: Final = 999  # llama.cpp's users' way to say it; its own "negative means all" is younger
# Reasoning tags are part of the reply's text even where a vocabulary makes them control tokens.
_RENDERED: Final = frozenset({"<think>", "</think>"})


class ModelError(SpecchatError):
    """A model that cannot be loaded, given a context or computed with."""


class OutOfMemory(ModelError):
    """There was no memory for the weights, a cache or a pass."""


class Closable(Protocol):
    """What lives in a model's memory and must be closed before it."""

    def close(self) -> None: ...


class Model:
    """A GGUF file in memory (or only its header and vocabulary). Make one with `Model.load`."""

    def __init__(self, path: Path, handle: int, *, vocab_only: bool, gpu_layers: int, devices: Sequence[str]) -> None:
        self.path = path
        self.vocab_only = vocab_only
        self.gpu_layers = gpu_layers  # how many were to be offloaded: 0 without a GPU
        self.devices = tuple(devices)  # those that llama.cpp was restricted to; empty: none
        self.handle: int | None = handle
        self._vocab = api.llama_model_get_vocab(handle)
        self.n_vocab: int = api.llama_vocab_n_tokens(self._vocab)
        self.n_ctx_train: int = api.llama_model_n_ctx_train(handle)
        self.n_layer: int = api.llama_model_n_layer(handle)
        self.size_bytes: int = api.llama_model_size(handle)  # of the weights, all parts of a split file together
        self.vocab_type: int = api.llama_vocab_type(self._vocab)
        self.bos = _token(api.llama_vocab_bos(self._vocab))
        self.eos = _token(api.llama_vocab_eos(self._vocab))
        self.add_bos: bool = api.llama_vocab_get_add_bos(self._vocab)
        self.add_eos: bool = api.llama_vocab_get_add_eos(self._vocab)
        self._pieces: dict[int, bytes] = {}
        self._eog: dict[int, bool] = {}
        self.contexts: weakref.WeakSet[Closable] = weakref.WeakSet()

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        gpu_layers: int | None = None,
        devices: Sequence[str] = (),
        vocab_only: bool = False,
        progress: Callable[[float], bool] | None = None,
    ) -> Self:
        """Load the file at `path` (the first part of a split one).

        `gpu_layers` None means all of them where there is a GPU; `devices` restricts llama.cpp to those names.
        `progress` is told a fraction between 0 and 1 and may return False to stop, which raises Cancelled; what it
        raises itself is passed on. Raises ModelError.
        """
        check_file(path)
        chosen = _choose_devices(devices)
        parameters = api.llama_model_default_params()
        parameters.vocab_only = vocab_only
        parameters.n_gpu_layers = _gpu_layers(gpu_layers)
        if chosen:
            parameters.devices = ctypes.cast(chosen, ctypes.c_void_p)
        report = _Progress(progress)
        parameters.progress_callback = report.callback
        log.forget()
        handle = api.llama_model_load_from_file(os.fsencode(path), parameters)
        if report.raised is not None:
            if handle:
                api.llama_model_free(handle)
            raise report.raised
        if not handle:
            raise load_failure(path, log.errors)
        model = cls(path, handle, vocab_only=vocab_only, gpu_layers=parameters.n_gpu_layers, devices=devices)
        if obstacle := model._chat_obstacle():
            model.close()
            raise ModelError(f"{path.name} cannot chat: {obstacle}")
        return model

    def close(self) -> None:
        """Give the memory back, after that of contexts still open. Safe to repeat."""
        for context in list(self.contexts):
            context.close()
        handle, self.handle = self.handle, None
        if handle:
            api.llama_model_free(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- what it is

    @property
    def name(self) -> str:
        """The name in the file's metadata, or else the file's."""
        return self.metadata.get("general.name") or self.path.stem

    @cached_property
    def description(self) -> str:
        """Architecture, parameters and quantisation, for example "llama 135M Q8_0"."""
        said = _text(lambda buffer, size: api.llama_model_desc(self.handle, buffer, size))
        # llama.cpp takes the size from the number of layers: "3B" for a draft of 26 layers and 127M parameters.
        return re.sub(r" \S+ ", f" {_count(api.llama_model_n_params(self.handle))} ", said, count=1)

    @cached_property
    def metadata(self) -> Mapping[str, str]:
        """Every scalar and string of the file's metadata, as text."""

        def entry(i: int) -> tuple[str, str]:
            key = _text(lambda buffer, size: api.llama_model_meta_key_by_index(self.handle, i, buffer, size))
            value = _text(lambda buffer, size: api.llama_model_meta_val_str_by_index(self.handle, i, buffer, size))
            return key, value

        return dict(entry(i) for i in range(api.llama_model_meta_count(self.handle)))

    @cached_property
    def chat_template(self) -> str | None:
        """The Jinja source in the file, if any."""
        source = api.llama_model_chat_template(self.handle, None)
        return source.decode("utf-8", "replace") if source else None

    @cached_property
    def is_recurrent(self) -> bool:
        """Whether a running state stands in for (a part of) the key-value cache."""
        return bool(api.llama_model_is_recurrent(self.handle) or api.llama_model_is_hybrid(self.handle))

    @cached_property
    def is_hybrid(self) -> bool:
        """Whether only some layers carry a running state: of these llama.cpp may keep snapshots."""
        return bool(api.llama_model_is_hybrid(self.handle))

    @cached_property
    def rollback_obstacle(self) -> str | None:
        """Why rejected tokens cannot be taken out of a cache made without snapshots; None where they can.

        A sliding window is no obstacle: `Context` keeps the whole cache (`swa_full`).
        """
        if not self.is_recurrent:
            return None
        architecture = self.metadata.get("general.architecture", "this architecture")
        kind = "hybrid" if self.is_hybrid else "recurrent"
        return f"{architecture} is {kind}: it carries a running state from which tokens cannot be taken back"

    def _chat_obstacle(self) -> str | None:
        if self.vocab_type == api.LLAMA_VOCAB_TYPE_NONE:
            return "the file has no vocabulary"
        if api.llama_model_has_encoder(self.handle) or not api.llama_model_has_decoder(self.handle):
            return "it is not a decoder-only model"
        if api.llama_model_is_diffusion(self.handle):
            return "it is a diffusion model, which does not write one token after the other"
        return None

    # ---- tokens

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """Token ids of `text`. `parse_special` reads control tokens such as `<|im_end|>` as themselves;
        `add_special` adds what the vocabulary wants around a text (BOS, EOS)."""
        data = text.encode("utf-8", "replace")
        size = len(data) + 8
        while True:
            tokens = np.empty(size, dtype=np.int32)
            pointer = tokens.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
            n = api.llama_tokenize(self._vocab, data, len(data), pointer, size, add_special, parse_special)
            if n >= 0:
                return list(map(int, tokens[:n].tolist()))
            if -n <= size:
                raise ModelError(f"{self.path.name} cannot tokenise {len(data)} bytes of text")
            size = -n

    def piece(self, token: int) -> bytes:
        """The bytes that `token` adds to a text: maybe half a character; none for a control token."""
        piece = self._pieces.get(token)
        if piece is None:
            special = self.token_text(token) in _RENDERED
            buffer = ctypes.create_string_buffer(64)
            n = api.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, special)
            if n < 0:
                buffer = ctypes.create_string_buffer(-n)
                n = api.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, special)
            piece = self._pieces[token] = buffer.raw[:n]
        return piece

    def token_text(self, token: int) -> str:
        """The vocabulary's own spelling of `token` (a control token's name; "Ġ" or "▁" for a space)."""
        text = api.llama_vocab_get_text(self._vocab, token)
        return text.decode("utf-8", "replace") if text else ""

    def token_bytes(self, token: int) -> bytes:
        """`token_text` undecoded: the cheap way to compare two vocabularies."""
        return api.llama_vocab_get_text(self._vocab, token) or b""

    def is_eog(self, token: int) -> bool:
        """Whether `token` ends a generation (EOS, end of turn, ...)."""
        found = self._eog.get(token)
        if found is None:
            found = self._eog[token] = bool(api.llama_vocab_is_eog(self._vocab, token))
        return found

    def is_control(self, token: int) -> bool:
        """Whether tokenising finds `token` in a text only where `parse_special` asks for it."""
        mask = api.LLAMA_TOKEN_ATTR_CONTROL | api.LLAMA_TOKEN_ATTR_UNKNOWN
        return bool(api.llama_vocab_get_attr(self._vocab, token) & mask)

    def is_user_defined(self, token: int) -> bool:
        """Whether `token` was added to the vocabulary whole, and is found in a text before anything else."""
        return bool(api.llama_vocab_get_attr(self._vocab, token) & api.LLAMA_TOKEN_ATTR_USER_DEFINED)


class _Progress:
    """llama.cpp's progress callback over a Python one that may say no, or raise."""

    def __init__(self, report: Callable[[float], bool] | None) -> None:
        self._report = report
        self.raised: BaseException | None = None
        self.callback = api.llama_progress_callback(self._call)

    def _call(self, fraction: float, _data: object) -> bool:
        try:
            if self._report is not None and not self._report(fraction):
                self.raised = Cancelled()
        except BaseException as error:
            self.raised = error
        return self.raised is None


def check_file(path: Path) -> None:
    """Whatever can be said without native code, which may end the process over a strange file."""
    if obstacle := magic.obstacle(path):
        raise ModelError(obstacle)


def load_failure(path: Path, errors: str) -> ModelError:
    """What to raise for a file that llama.cpp refused, from its error messages."""
    if "unknown model architecture" in errors:
        architecture = errors.split("unknown model architecture: ", 1)[1].split("\n", 1)[0].strip("'")
        return ModelError(
            f"{path.name} is a model of the architecture {architecture}, which this llama.cpp does not know"
        )
    if "only supports up to version" in errors:
        return ModelError(
            f"{path.name} has a newer version of the GGUF format than this llama.cpp reads, or is damaged"
        )
    if lacks_memory(errors):
        return OutOfMemory(f"there is not enough memory to load {path.name}")
    if "gguf_init" in errors or "file bounds" in errors:
        return ModelError(f"{path} is incomplete or damaged: fetch it again")
    return ModelError(f"llama.cpp cannot load {path}: {last_line(errors)}")


def lacks_memory(errors: str) -> bool:
    """Whether llama.cpp's messages tell of a failed allocation (mmap's among them: "Cannot allocate memory")."""
    return "alloc" in errors


def last_line(errors: str) -> str:
    """The most telling of llama.cpp's messages, without the name of the function that wrote it."""
    lines = [line for line in errors.splitlines() if not line.startswith("llama_model_load_from_file_impl")]
    if not lines:
        return "it gave no reason"
    return lines[-1].split(": ", 1)[-1].removeprefix("error loading model: ")


def _choose_devices(names: Sequence[str]) -> ctypes.Array[ctypes.c_void_p] | None:
    """The NULL-terminated array that llama.cpp wants, or None for its own choice. The CPU alone is an empty one."""
    if not names:
        return None
    if tuple(names) == ("CPU",):
        return (ctypes.c_void_p * 1)(None)
    known = {describe(handle).name: handle for handle in device_handles()}
    if unknown := [name for name in names if name not in known]:
        raise ModelError(f"there is no device {', '.join(unknown)} here; there is {', '.join(known)}")
    return (ctypes.c_void_p * (len(names) + 1))(*(known[name] for name in names), None)


def _gpu_layers(asked: int | None) -> int:
    if asked is not None:
        return ALL_LAYERS if asked < 0 else asked
    has_gpu = api.llama_supports_gpu_offload() and any(d.kind in ("gpu", "igpu") for d in devices())
    return ALL_LAYERS if has_gpu else 0


def _token(number: int) -> int | None:
    return None if number == api.LLAMA_TOKEN_NULL else int(number)


def _count(parameters: int) -> str:
    """As the names of models have it: 135M, 1.5B."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if parameters >= size:
            return f"{parameters / size:.2g}{unit}" if parameters < 10 * size else f"{parameters / size:.0f}{unit}"
    return str(parameters)


def _text(call: Callable[[Any, int], int]) -> str:
    """The result of a native function that fills a buffer and returns the length it needed."""
    size = 256
    while True:
        buffer = ctypes.create_string_buffer(size)
        needed = call(buffer, size)
        if needed < size:
            return buffer.value.decode("utf-8", "replace")
        size = needed + 1
