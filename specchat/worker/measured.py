"""What was measured of a pair on this machine, kept between sessions: pass costs, and how the draft is accepted.

Contract: one small JSON file for each combination of model files, devices, threads and cache types. Losing it costs
a second at the next start, so a damaged file counts as none and a write that fails is dropped.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from specchat import locations
from specchat.engine.acceptance import Learned
from specchat.engine.costs import Costs


@dataclass(frozen=True, slots=True)
class Measured:
    """One pair's figures; None where nothing was measured yet."""

    path: Path
    costs: Costs | None = None
    learned: Learned | None = None

    @classmethod
    def of(cls, *conditions: object) -> Self:
        """What is on disk for these conditions: whatever changes the figures belongs in them."""
        path = _file(conditions)
        try:
            raw = json.loads(path.read_text("utf-8"))
            tables = raw["costs"]
            costs = tables and Costs(_table(tables["target"]), _table(tables["draft"]), measured=True)
            learned = raw["learned"] and _learned(raw["learned"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls(path)
        return cls(path, costs, learned)

    def save(self, costs: Costs | None, learned: Learned | None) -> None:
        """Replace what is on disk; without `costs` the next session measures again."""
        _write(self.path, {"costs": asdict(costs) if costs else None, "learned": asdict(learned) if learned else None})


def once(check: Callable[[], str], *conditions: object) -> str:
    """The result of a slow check, which is made once for these conditions."""
    path = _file(conditions)
    with suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads(path.read_text("utf-8"))["result"])
    result = check()
    _write(path, {"result": result})
    return result


def _file(conditions: tuple[object, ...]) -> Path:
    name = hashlib.sha256(repr(conditions).encode()).hexdigest()[:24]
    return locations.cache_dir() / "measured" / f"{name}.json"


def _write(path: Path, document: Mapping[str, object]) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(document), "utf-8")
        temporary.replace(path)


def identity(path: Path) -> tuple[str, int, int]:
    """A model file, so that another one under the same name counts as another."""
    stat = path.stat()
    return str(path), stat.st_size, stat.st_mtime_ns


def _learned(raw: Mapping[str, Any]) -> Learned:
    # The number of trials came later than the rest.
    return Learned(float(raw["pooled"]), tuple(map(float, raw["bins"])), float(raw.get("trials", 0.0)))


def _table(raw: Mapping[str, float]) -> dict[int, float]:
    return {int(width): float(seconds) for width, seconds in raw.items()}
