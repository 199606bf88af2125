"""A GGUF file's header, read through ggml without loading the model: its metadata, and how many bytes each tensor has.

Contract: nothing is allocated but the header itself (some milliseconds, or 0.1 s for a vocabulary of 150,000). Of a
long array, or one that holds texts, only the length is read. All parts of a split file are read; the metadata is that
of the first. Raises ModelError as `Model.load` does.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from specchat.engine.model import check_file, load_failure
from specchat.engine.native import ggml, log

Value: TypeAlias = int | float | bool | str | tuple[int | float | bool, ...]

_STRING, _ARRAY = 8, 9  # gguf.h: enum gguf_type
_LONG: Final = 1024  # entries; an array with one for every layer is shorter, one with one for every token longer
_SCALARS: Final[Mapping[int, tuple[str, Any]]] = {
    0: ("u8", ctypes.c_uint8),
    1: ("i8", ctypes.c_int8),
    2: ("u16", ctypes.c_uint16),
    3: ("i16", ctypes.c_int16),
    4: ("u32", ctypes.c_uint32),
    5: ("i32", ctypes.c_int32),
    6: ("f32", ctypes.c_float),
    7: ("bool", ctypes.c_bool),
    10: ("u64", ctypes.c_uint64),
    11: ("i64", ctypes.c_int64),
    12: ("f64", ctypes.c_double),
}


class _InitParams(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


@dataclass(frozen=True, slots=True)
class Header:
    """`metadata`: scalars, texts, short arrays of numbers; `lengths`: of every array; `tensors`: bytes by name."""

    path: Path
    metadata: Mapping[str, Value]
    lengths: Mapping[str, int]
    tensors: Mapping[str, int]


def read(path: Path) -> Header:
    """The header of the file at `path` (the first part of a split one). Raises ModelError."""
    first = _read(path)
    tensors = dict(first.tensors)
    for part in _further_parts(path, first.metadata):
        tensors |= _read(part).tensors
    return Header(path, first.metadata, first.lengths, tensors)


def _further_parts(path: Path, metadata: Mapping[str, Value]) -> Iterator[Path]:
    count = metadata.get("split.count", 0)
    if isinstance(count, int) and count > 1:
        for number in range(2, count + 1):
            # llama.h: llama_split_path names the parts so.
            yield path.with_name(path.name.replace("-00001-of-", f"-{number:05d}-of-"))


def _read(path: Path) -> Header:
    check_file(path)
    log.forget()
    handle = ggml("gguf_init_from_file", ctypes.c_void_p, ctypes.c_char_p, _InitParams)(
        os.fsencode(path), _InitParams(True, None)
    )
    if not handle:
        raise load_failure(path, log.errors)
    try:
        numbers = range(_call("gguf_get_n_kv", ctypes.c_int64)(handle))
        kinds = {_key(handle, i): (i, _call("gguf_get_kv_type", ctypes.c_int, 1)(handle, i)) for i in numbers}
        metadata = {name: value for name, (i, kind) in kinds.items() if (value := _value(handle, i, kind)) is not None}
        arrays = {name: i for name, (i, kind) in kinds.items() if kind == _ARRAY}
        length = _call("gguf_get_arr_n", ctypes.c_size_t, 1)
        return Header(path, metadata, {name: length(handle, i) for name, i in arrays.items()}, dict(_tensors(handle)))
    finally:
        ggml("gguf_free", None, ctypes.c_void_p)(handle)


def _call(name: str, result: Any, n_indices: int = 0) -> Callable[..., Any]:
    """A function of gguf.h that takes the handle and maybe an index."""
    function: Callable[..., Any] = ggml(name, result, ctypes.c_void_p, *[ctypes.c_int64] * n_indices)
    return function


def _key(handle: int, i: int) -> str:
    name: bytes = _call("gguf_get_key", ctypes.c_char_p, 1)(handle, i)
    return name.decode("utf-8", "replace")


def _value(handle: int, i: int, kind: int) -> Value | None:
    if kind == _STRING:
        text: bytes = _call("gguf_get_val_str", ctypes.c_char_p, 1)(handle, i)
        return text.decode("utf-8", "replace")
    if kind in _SCALARS:
        name, ctype = _SCALARS[kind]
        scalar: Value = _call(f"gguf_get_val_{name}", ctype, 1)(handle, i)
        return scalar
    if kind == _ARRAY:
        return _array(handle, i)
    return None


def _array(handle: int, i: int) -> Value | None:
    kind = _call("gguf_get_arr_type", ctypes.c_int, 1)(handle, i)
    n = _call("gguf_get_arr_n", ctypes.c_size_t, 1)(handle, i)
    if kind not in _SCALARS or n > _LONG:
        return None
    data = _call("gguf_get_arr_data", ctypes.c_void_p, 1)(handle, i)
    return tuple((_SCALARS[kind][1] * n).from_address(data)) if n else ()


def _tensors(handle: int) -> Iterator[tuple[str, int]]:
    name = _call("gguf_get_tensor_name", ctypes.c_char_p, 1)
    size = _call("gguf_get_tensor_size", ctypes.c_size_t, 1)
    for i in range(_call("gguf_get_n_tensors", ctypes.c_int64)(handle)):
        yield name(handle, i).decode("utf-8", "replace"), size(handle, i)
