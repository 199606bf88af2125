"""Why did the engine's process end? Read from its exit status, its log and the kernel's counters."""

from __future__ import annotations

import re
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specchat import locations

_TAIL: Final = 16 << 10  # bytes of the log that are read
_LAST_WORDS: Final = 2 << 10  # bytes of it that count: a failure that the engine survived may stand above them
_FAULT: Final = b"Fatal Python error"  # where Python's own report of a crash begins, which names no cause
# std::bad_alloc, ggml's and CUDA's own words for an allocation that failed, and Python's.
_NO_MEMORY: Final = re.compile(
    rb"bad_alloc|out of memory|insufficient memory|failed to allocate|cannot allocate memory|MemoryError", re.IGNORECASE
)
# What llama.cpp's RPC engine says before it ends the process over a machine that does not answer any more.
_REMOTE_GONE: Final = re.compile(rb"Remote RPC server crashed|Failed to connect to|RPC handshake failed")


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence for the user, and whether memory was probably the cause."""

    sentence: str
    memory_suspected: bool


def oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since it started; 0 where it does not tell."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return 0


def examine(status: int | None, oom_kills_before: int, log: Path) -> Finding:
    """Explain the exit status of a child that nobody asked to end.

    `status` is minus the signal's number, as `subprocess` gives it, or None for a child that fell silent and had to
    be killed.
    """
    where = f"; its log is {locations.tilde(log)}" if log.is_file() else ""
    if status is None:
        return Finding(f"the engine's process stopped answering and was ended{where}", False)
    how = _ending(status)
    words = _last_words(log)
    if _REMOTE_GONE.search(words):
        gone = "the machine that lends its devices (--rpc) does not answer any more, which ended the engine's process"
        return Finding(f"{gone}{where}", False)
    certain = oom_kills() > oom_kills_before or _NO_MEMORY.search(words) is not None
    suspected = certain or how == "SIGKILL"
    memory = " because memory ran out" if certain else " (perhaps because memory ran out)" if suspected else ""
    return Finding(f"the engine's process ended unexpectedly with {how}{memory}{where}", suspected)


def _ending(status: int) -> str:
    if status >= 0:
        return f"status {status:#x}" if status > 255 else f"status {status}"  # Windows' codes are known in hexadecimal
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def _last_words(log: Path) -> bytes:
    with suppress(OSError), log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - _TAIL))
        said = stream.read(_TAIL)
        before, fault, _ = said.rpartition(_FAULT)
        return (before if fault else said)[-_LAST_WORDS:]
    return b""
