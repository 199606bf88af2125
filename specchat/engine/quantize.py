"""Requantise a GGUF file with llama.cpp, in a process of its own: it may abort, and its output is native.

    python -m specchat.engine.quantize SRC DST TYPE [--prune 3,4,5] [--threads N]

Contract: DST appears complete, by an atomic rename after fsync, or not at all. Standard output gets one line
`progress DONE TOTAL` per tensor; standard error gets one sentence on failure, with exit status 1 (2 for a wrong
call). Nothing native reaches the terminal.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import llama_cpp

# llama-quant.cpp announces each tensor as "[  12/ 272] name - [...]".
_TENSOR: Final = re.compile(r"\[\s*(\d+)/\s*(\d+)\]")
_ERROR_LEVEL: Final = 4  # GGML_LOG_LEVEL_ERROR; llama_cpp's own table has error and debug the wrong way around
_END_OF_LAYERS: Final = -1  # llama.h: prune_layers is an int32 array ended by -1


class QuantizeError(Exception):
    """One sentence saying why there is no result."""


def file_type(name: str) -> int:
    """llama.cpp's number of the quantisation called `name` (Q8_0, Q4_K_M, F16, ...).

    Raises QuantizeError for a name this build of llama.cpp does not know.
    """
    for prefix in ("LLAMA_FTYPE_MOSTLY_", "LLAMA_FTYPE_ALL_"):
        value = getattr(llama_cpp, prefix + name.upper(), None)
        if isinstance(value, int):
            return value
    raise QuantizeError(f"llama.cpp knows no quantisation called {name}")


def quantize(
    src: Path,
    dst: Path,
    type_name: str,
    prune: tuple[int, ...] = (),
    threads: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write `src` requantised to `type_name`, without the layers in `prune`, to `dst`.

    `threads` 0 means all. `progress` gets tensors done and in total. Raises QuantizeError or OSError.
    """
    errors: list[str] = []
    callback = _listener(progress, errors)
    llama_cpp.llama_log_set(callback, ctypes.c_void_p(0))
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = file_type(type_name)
    params.nthread = threads
    params.allow_requantize = True
    layers = (ctypes.c_int32 * (len(prune) + 1))(*prune, _END_OF_LAYERS)
    if prune:
        _check_layers(src, prune)
        params.prune_layers = ctypes.cast(layers, ctypes.POINTER(ctypes.c_int32))
    dst.parent.mkdir(parents=True, exist_ok=True)
    temporary = dst.with_name(f".{dst.name}.{os.getpid()}.tmp")
    try:
        code = llama_cpp.llama_model_quantize(os.fsencode(src), os.fsencode(temporary), ctypes.byref(params))
        if code != 0:
            raise QuantizeError(f"could not make {dst.name} from {src.name}: {_reason(errors, dst.parent)}")
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(dst)
    finally:
        temporary.unlink(missing_ok=True)


def _check_layers(src: Path, prune: tuple[int, ...]) -> None:
    """llama.cpp passes over a layer number that the model does not have; say it instead."""
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True  # llama_model_n_layer is -1 then; the header's own value is there
    model = llama_cpp.llama_model_load_from_file(os.fsencode(src), params)
    if not model:
        return  # the quantiser will say what is wrong with the file
    layers = int(_meta(model, f"{_meta(model, 'general.architecture')}.block_count") or 0)
    llama_cpp.llama_model_free(model)
    if max(prune) >= layers:
        raise QuantizeError(f"{src.name} has layers 0 to {layers - 1}; there is no layer {max(prune)} to prune")


def _meta(model: object, key: str) -> str:
    buffer = ctypes.create_string_buffer(128)
    llama_cpp.llama_model_meta_val_str(model, key.encode(), buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace")


def _reason(errors: list[str], folder: Path) -> str:
    said = errors[-1].rsplit("failed to quantize: ", 1)[-1] if errors else "llama.cpp gave no reason"
    if "iostream" in said:  # all that the C++ library says of a failed write
        free = shutil.disk_usage(folder).free
        return f"writing failed ({free / 1e6:,.0f} MB free in {folder})"
    return said


def _listener(progress: Callable[[int, int], None] | None, errors: list[str]) -> object:
    def on_log(level: int, text: bytes, _user_data: object) -> None:
        line = text.decode("utf-8", "replace").strip()
        match = _TENSOR.match(line)
        if match and progress:
            progress(int(match[1]), int(match[2]))
        elif level == _ERROR_LEVEL and line:
            errors.append(line)

    return llama_cpp.llama_log_callback(on_log)


def main() -> int:
    """The command line above."""
    parser = argparse.ArgumentParser(prog="python -m specchat.engine.quantize")
    parser.add_argument("src", type=Path)
    parser.add_argument("dst", type=Path)
    parser.add_argument("type")
    parser.add_argument("--prune", default="", help="layers to leave out, counted from 0: 3,4,5")
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    try:
        prune = tuple(int(layer) for layer in args.prune.split(",") if layer)
    except ValueError:
        parser.error(f"--prune must be layer numbers with commas between, not {args.prune}")
    try:
        quantize(args.src, args.dst, args.type, prune, args.threads, _print_progress)
    except QuantizeError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"could not make {args.dst.name}: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


def _print_progress(done: int, total: int) -> None:
    print(f"progress {done} {total}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
