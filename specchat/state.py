"""What specchat remembers by itself between runs: the pair last opened, when each was used, what was offered.

Contract: losing the file loses nothing a person typed, so a damaged one counts as empty and a write that
fails (read-only or full disk) is dropped. Two programs writing at once: the later one wins.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from specchat import locations


@dataclass(frozen=True, slots=True)
class State:
    """`last_opened`: a pair's name or a model's path. `used`: name or path -> seconds since the epoch.

    `offered`: what was offered once and need not be again.
    """

    last_opened: str | None = None
    used: Mapping[str, float] = field(default_factory=dict)
    offered: tuple[str, ...] = ()


def load(path: Path | None = None) -> State:
    """The state on disk; an empty one if there is none or it cannot be read."""
    try:
        raw = json.loads((path or locations.state_file()).read_text("utf-8"))
    except (OSError, ValueError):
        return State()
    if not isinstance(raw, dict):
        return State()
    last, used, offered = (raw.get(name) for name in ("last_opened", "used", "offered"))
    return State(
        last_opened=last if isinstance(last, str) else None,
        used={str(k): float(v) for k, v in used.items() if isinstance(v, int | float)}
        if isinstance(used, dict)
        else {},
        offered=tuple(map(str, offered)) if isinstance(offered, list) else (),
    )


def remember_opened(name: str, path: Path | None = None, now: float | None = None) -> None:
    """Note that the pair or model `name` is being opened now."""
    known = load(path)
    used = {**known.used, name: time.time() if now is None else now}
    _save(replace(known, last_opened=name, used=used), path)


def offer_once(what: str, path: Path | None = None) -> bool:
    """Note that `what` is being offered now; False if it was before."""
    known = load(path)
    if what in known.offered:
        return False
    _save(replace(known, offered=(*known.offered, what)), path)
    return True


def _save(state: State, path: Path | None) -> None:
    path = path or locations.state_file()
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(asdict(state), indent=1), "utf-8")
        temporary.replace(path)
