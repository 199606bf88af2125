"""Making a model file from another with llama.cpp's quantiser, which runs in a process of its own.

Contract: `make` yields progress and leaves either the complete file or nothing; abandoning the generator ends
the process. It may crash without harm to the program.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from pathlib import Path

import psutil

from specchat.errors import SpecchatError
from specchat.pairs import child
from specchat.pairs.library import Step


def make(
    src: Path, dst: Path, kind: str, prune_layers: Sequence[int] = (), text: str = ""
) -> Generator[Step, None, None]:
    """Write `src`, requantised to llama.cpp's type `kind` and without `prune_layers`, to `dst`.

    Steps count tensors. Raises SpecchatError with the reason.
    """
    text = text or f"making {dst.name} ({kind})"
    _sweep(dst)
    command = [sys.executable, "-m", "specchat.engine.quantize", str(src), str(dst), kind]
    if prune_layers:
        command += ["--prune", ",".join(map(str, prune_layers))]

    def progress(line: str) -> Step | None:
        word, *numbers = line.split() or [""]
        return Step(text, int(numbers[0]), int(numbers[1]), in_bytes=False) if word == "progress" else None

    yield Step(text, in_bytes=False)
    try:
        finished = yield from child.run(command, progress)
    finally:
        _sweep(dst)
    if finished.status != 0:
        complaints = finished.errors.strip().splitlines()
        raise SpecchatError(complaints[-1] if complaints else f"the quantiser ended with status {finished.status}")


def _sweep(dst: Path) -> None:
    """Delete what quantisers that were killed had written (`.NAME.PID.tmp`, see engine/quantize.py)."""
    for path in dst.parent.glob(f".{dst.name}.*.tmp"):
        pid = path.name.split(".")[-2]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            path.unlink(missing_ok=True)
