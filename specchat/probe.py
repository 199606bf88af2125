"""Questions to llama.cpp that a command asks without loading it: build, devices, which models may be paired.

Contract: each question runs `specchat.engine.probe` in a process of its own and waits for it. A model that
crashes that process is a SpecchatError here, as is everything else that goes wrong.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from specchat.errors import SpecchatError

_PATIENCE: Final = 120  # seconds; a cold import of the library from a slow disk takes ten


@dataclass(frozen=True, slots=True)
class Device:
    """Something llama.cpp computes on. Memory in bytes, as the device says it; a CPU's "free" is its total."""

    name: str
    description: str
    kind: str  # "cpu", "gpu", "igpu" or "accel"
    free: int
    total: int


@dataclass(frozen=True, slots=True)
class Build:
    """The llama.cpp in use. `features` is its own line about itself."""

    version: str  # of llama-cpp-python
    features: str
    gpu: bool  # whether it can use any GPU at all
    rpc: bool
    devices: tuple[Device, ...]

    @property
    def gpus(self) -> tuple[Device, ...]:
        """The graphics cards it can use here."""
        return tuple(device for device in self.devices if device.kind in ("gpu", "igpu"))


@dataclass(frozen=True, slots=True)
class Check:
    """One rule of drafting, and what was found."""

    rule: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Drafts:
    """What may draft for a target. `obstacles` says for each candidate why it cannot; None where it can."""

    name: str  # the target's, from its header; may be empty
    obstacle: str | None  # why the target cannot speculate with any draft
    obstacles: Mapping[Path, str | None]

    @property
    def fitting(self) -> tuple[Path, ...]:
        """The candidates that can, in the order they were given."""
        return () if self.obstacle else tuple(p for p, obstacle in self.obstacles.items() if obstacle is None)


def build() -> Build:
    """The llama.cpp of this installation. Takes about a second. Raises SpecchatError."""
    answer = _ask(["build"])
    return Build(**{**answer, "devices": tuple(Device(**device) for device in answer["devices"])})


def pair(target: Path, draft: Path) -> tuple[Check, ...]:
    """Every rule for `draft` drafting for `target`. Raises SpecchatError when a file cannot be read."""
    return tuple(Check(**check) for check in _ask(["pair", str(target), str(draft)])["checks"])


def drafts(target: Path, candidates: Sequence[Path], *, first: bool = False) -> Drafts:
    """Which of the candidates can draft for `target`; with `first`, none is looked at after one that can.

    Raises SpecchatError when the target cannot be read itself.
    """
    answer = _ask(["first" if first else "drafts", str(target), *map(str, candidates)])
    obstacles = {Path(path): obstacle for path, obstacle in answer["candidates"].items()}
    return Drafts(answer["name"], answer["obstacle"], obstacles)


def _ask(question: Sequence[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "specchat.engine.probe", *question]
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=_PATIENCE)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SpecchatError(f"llama.cpp did not answer: {error}") from error
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        # A negative status is the signal that ended it: llama.cpp aborts on some files.
        crashed = done.returncode < 0 or not said
        raise SpecchatError(f"llama.cpp ended with status {done.returncode}" if crashed else said[-1])
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
