"""What this machine has free now, read in the engine's process: RAM within its limits, GPUs, other engines.

Contract: reads, allocates nothing. ggml's CPU device is never asked: what it calls free is the machine's total.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from typing import Final

import psutil

from specchat.engine import llama
from specchat.memory.machine import Device, Machine, Other
from specchat.worker import ram

_ENGINE: Final = "specchat.worker.process"


def read() -> Machine:
    """Everything a plan wants to know."""
    room = ram.available()
    return Machine(room.total, room.free, room.bound, tuple(devices()), tuple(others()))


def devices() -> Iterator[Device]:
    """The GPUs that this build of llama.cpp can use, other machines' among them."""
    unified = sys.platform == "darwin" and platform.machine() == "arm64"
    for device in llama.devices():
        if device.kind in ("gpu", "igpu"):
            remote = device.name.startswith("RPC")
            shared = not remote and (device.kind == "igpu" or unified)
            yield Device(device.name, device.description, device.free, device.total, shared, remote)


def others() -> Iterator[Other]:
    """Engines of other specchat processes, with what they hold in RAM."""
    for process in psutil.process_iter(["pid", "cmdline", "memory_info"]):
        info = process.info
        if info["pid"] != os.getpid() and _ENGINE in (info["cmdline"] or ()) and info["memory_info"]:
            yield Other(info["pid"], info["memory_info"].rss)
