"""Devices of other machines, through llama.cpp's own RPC engine: using them, and serving this machine's.

Contract: needs a llama.cpp built with GGML_RPC, which most are not; everything else raises a ModelError that says so.
The protocol has no authentication and no encryption: whoever reaches a port that is served can use its memory, and
read and change what is computed there.
"""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Sequence
from typing import Final

from specchat.engine.model import ModelError
from specchat.engine.native import api, describe, device_handles, devices, ggml

NO_RPC: Final = (
    "this build of llama.cpp cannot use other machines: it was made without its RPC engine (CMAKE_ARGS=-DGGML_RPC=ON)"
)
_PATIENCE: Final = 3.0  # seconds for a connection


def supported() -> bool:
    """Whether this build has the RPC engine."""
    return bool(api.llama_supports_rpc())


def connect(endpoints: Sequence[str]) -> list[str]:
    """Add the devices served at each HOST:PORT to those of this process; a sentence for every one that is not there.

    Raises ModelError if this build cannot, or an endpoint is none.
    """
    if endpoints and not supported():
        raise ModelError(NO_RPC)
    known = {device.description for device in devices() if device.name.startswith("RPC")}
    return [sentence for endpoint in endpoints if endpoint not in known and (sentence := _add(endpoint))]


def _add(endpoint: str) -> str:
    host, port = parse(endpoint)
    try:
        # llama.cpp ends the process if nobody answers.
        socket.create_connection((host, port), _PATIENCE).close()
    except OSError as error:
        return f"nobody serves devices at {endpoint} ({error.strerror or error})"
    registry = ggml("ggml_backend_rpc_add_server", ctypes.c_void_p, ctypes.c_char_p)(endpoint.encode())
    if not registry:
        return f"{endpoint} serves no devices"
    ggml("ggml_backend_register", None, ctypes.c_void_p)(registry)
    return ""


def parse(endpoint: str) -> tuple[str, int]:
    """(host, port). Raises ModelError for anything but HOST:PORT."""
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ModelError(f"{endpoint!r} is not of the form HOST:PORT")
    return host, int(port)


def serve(endpoint: str, names: Sequence[str], threads: int) -> None:
    """Serve this machine's devices (empty: its GPUs, or else its CPU) at HOST:PORT until the process is ended.

    One client at a time. Raises ModelError if this build cannot, a device does not exist, or the address is taken.
    """
    if not supported():
        raise ModelError(NO_RPC)
    chosen = _served(names)
    host, port = parse(endpoint)
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        raise ModelError(f"cannot serve at {endpoint}: {error.strerror or error}") from None
    start = ggml(
        "ggml_backend_rpc_start_server",
        None,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_size_t,
        ctypes.POINTER(ctypes.c_void_p),
    )
    start(endpoint.encode(), None, threads, len(chosen), (ctypes.c_void_p * len(chosen))(*chosen))
    raise ModelError(f"serving at {endpoint} ended by itself")


def _served(names: Sequence[str]) -> list[int]:
    known = {describe(handle).name: handle for handle in device_handles()}
    if unknown := [name for name in names if name not in known]:
        raise ModelError(f"there is no device {', '.join(unknown)} here; there is {', '.join(known)}")
    if names:
        return [known[name] for name in names]
    gpus = [handle for handle in known.values() if describe(handle).kind in ("gpu", "igpu")]
    return gpus or [handle for handle in known.values() if describe(handle).kind == "cpu"]
