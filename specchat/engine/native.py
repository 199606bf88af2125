"""llama.cpp's library itself: opened once, its log kept off the terminal, its devices.

Contract: importing this module loads the native library, so only engine/model.py, context.py and header.py do. What
llama.cpp logs goes nowhere until `log_to` names a file; its latest errors are kept for the sentences of `ModelError`.
"""

from __future__ import annotations

import ctypes
import logging
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO

import llama_cpp.llama_cpp as api

__all__ = ["Device", "api", "describe", "device_handles", "devices", "ggml", "log"]

_DEBUG, _ERROR, _CONTINUED = 1, 4, 5  # ggml.h: enum ggml_log_level
# ggml-backend.h: enum ggml_backend_dev_type
_KINDS: Final = {0: "cpu", 1: "gpu", 2: "igpu", 3: "accel"}


class NativeLog:
    """Where llama.cpp's messages go. There is one, as llama.cpp has one callback for the whole process."""

    def __init__(self) -> None:
        self._file: TextIO | None = None
        self._errors: deque[str] = deque(maxlen=20)
        self._level = _DEBUG
        self._callback = api.llama_log_callback(self._write)  # llama.cpp keeps the pointer, so keep the object

    def install(self) -> None:
        """Replace llama_cpp's own callback, which prints to standard error."""
        api.llama_log_set(self._callback, None)

    def send_to(self, path: Path | None) -> None:
        """Append everything but debug messages to the file at `path`; None: to nowhere."""
        if self._file:
            self._file.close()
        self._file = path.open("a", encoding="utf-8", buffering=1) if path else None

    def forget(self) -> None:
        """Forget the errors so far: the next call is about to be judged by what it says."""
        self._errors.clear()

    @property
    def errors(self) -> str:
        """The latest error messages, a line each."""
        return "\n".join(self._errors)

    def _write(self, level: int, text: bytes, _user_data: object) -> None:
        self._level = self._level if level == _CONTINUED else level
        if self._level == _DEBUG:
            return
        message = text.decode("utf-8", "replace")
        if self._file:
            self._file.write(message)
        if self._level == _ERROR and message.strip():
            self._errors.append(message.strip())


log = NativeLog()
log.install()
# llama_cpp attaches no handler to its logger, whose last resort is standard error.
logging.getLogger("llama-cpp-python").addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True)
class Device:
    """Something llama.cpp can compute on. Memory is in bytes as the device reports it; for a CPU "free" is not."""

    name: str  # "CPU", "CUDA0", "Metal", ...
    description: str
    kind: str  # "cpu", "gpu", "igpu" or "accel"
    free: int
    total: int


def ggml(name: str, result: Any, *arguments: Any) -> Any:
    """A function of ggml, found through libllama.

    llama_cpp's own handle to libggml is another copy of the library with another registry; symbols looked up through
    libllama are those that it was linked with.
    """
    function = getattr(api._lib, name)
    function.restype, function.argtypes = result, arguments
    return function


def device_handles() -> list[int]:
    """ggml's handles of all devices, as `llama_model_params.devices` wants them."""
    count = ggml("ggml_backend_dev_count", ctypes.c_size_t)
    get = ggml("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
    return [get(i) for i in range(count())]


def describe(handle: int) -> Device:
    """What is behind a handle."""
    name = ggml("ggml_backend_dev_name", ctypes.c_char_p, ctypes.c_void_p)
    description = ggml("ggml_backend_dev_description", ctypes.c_char_p, ctypes.c_void_p)
    kind = ggml("ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p)
    size = ctypes.POINTER(ctypes.c_size_t)
    memory = ggml("ggml_backend_dev_memory", None, ctypes.c_void_p, size, size)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    memory(handle, ctypes.byref(free), ctypes.byref(total))
    return Device(
        name(handle).decode(),
        description(handle).decode("utf-8", "replace").strip(),
        _KINDS.get(kind(handle), "other"),
        free.value,
        total.value,
    )


def devices() -> list[Device]:
    """Every device that this build of llama.cpp sees, in its own order."""
    return [describe(handle) for handle in device_handles()]
