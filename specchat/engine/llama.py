"""llama.cpp through its low-level functions: a model file, and a context over it that the decoder can drive.

Contract: this is the only door to llama_cpp (quantize.py, in a process of its own, has another); importing it loads
the native library. Every failure of that library becomes a `ModelError` with one sentence that names the file.
"""

from __future__ import annotations

from pathlib import Path

from specchat.engine.context import CACHE_TYPES, N_OUTPUTS_MAX, Context
from specchat.engine.model import Model, ModelError, OutOfMemory
from specchat.engine.native import Device, devices, log
from specchat.engine.threads import default_threads

__all__ = [
    "CACHE_TYPES",
    "N_OUTPUTS_MAX",
    "Context",
    "Device",
    "Model",
    "ModelError",
    "OutOfMemory",
    "default_threads",
    "devices",
    "log_to",
]


def log_to(path: Path | None) -> None:
    """Append llama.cpp's messages to the file at `path` from now on (None: drop them)."""
    log.send_to(path)
