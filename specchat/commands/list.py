"""`specchat list`: which pairs and files are here, and in what state."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click

from specchat import locations, state
from specchat.commands import console
from specchat.errors import SpecchatError
from specchat.pairs import catalog
from specchat.pairs.catalog import Catalog, Pair
from specchat.pairs.library import FileStatus, Library, State
from specchat.units import format_bytes


@dataclass(frozen=True, slots=True)
class Inventory:
    """What there is to list: pairs of which something is here, every file that is here, disk use."""

    pairs: tuple[tuple[Pair, tuple[FileStatus, ...]], ...]
    files: tuple[tuple[FileStatus, tuple[str, ...]], ...]  # with the names of the pairs that use it
    disk: int
    used: dict[str, float]

    @property
    def damaged(self) -> tuple[FileStatus, ...]:
        """The files that `specchat pull --force` has to heal."""
        return tuple(status for status, _ in self.files if status.state is State.DAMAGED)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--verify", is_flag=True, help="Hash every file again; exit with 1 if one is damaged.")
def command(as_json: bool, verify: bool) -> None:
    """Show the pairs and model files that are here: size, state, when last used, disk use."""
    known, library = catalog.load(), Library.default()
    if verify:
        for file in known.files.values():
            console.follow(library.verify(file))
    inventory = take(known, library)
    if as_json:
        click.echo(json.dumps(_document(inventory, library), indent=2))
    else:
        click.echo("\n".join(_lines(inventory, library)))
    if verify and inventory.damaged:
        names = ", ".join(status.file.name for status in inventory.damaged)
        raise SpecchatError(f"damaged: {names}; `specchat pull --force` on a pair that uses it heals it")


def take(known: Catalog, library: Library) -> Inventory:
    """Look at everything once."""
    statuses = {name: library.status(file) for name, file in known.files.items()}
    here = {name: status for name, status in statuses.items() if status.state is not State.MISSING}
    # A shared draft alone makes no pair worth a line; a pair of the user's own always is.
    pairs = [
        (pair, tuple(statuses[file.name] for file in pair.files))
        for pair in known.pairs.values()
        if pair.own or pair.target.name in here
    ]
    files = [
        (status, tuple(pair.name for pair in known.users(status.file) if pair.own or pair.target.name in here))
        for status in here.values()
    ]
    return Inventory(tuple(pairs), tuple(files), library.disk_use(), dict(state.load().used))


def pair_state(statuses: tuple[FileStatus, ...]) -> State:
    """The pair's state: that of its worst file; ready only if all are."""
    order = (State.DAMAGED, State.MISSING_SHARD, State.PARTIAL, State.MISSING, State.UNCHECKED, State.READY)
    worst = min((status.state for status in statuses), key=order.index)
    # Something of it is here already, else it would not be looked at.
    incomplete = worst is State.MISSING and any(status.state is not State.MISSING for status in statuses)
    return State.PARTIAL if incomplete else worst


def pair_percent(statuses: tuple[FileStatus, ...]) -> int | None:
    """How much of the pair is here, 0 to 100; None where a size is not known."""
    if all(status.state is State.READY for status in statuses):
        return 100
    sizes = [status.bytes if status.state is State.READY else status.file.bytes for status in statuses]
    known = [size for size in sizes if size]
    if len(known) < len(sizes):
        return None
    return min(99, sum(status.bytes for status in statuses) * 100 // sum(known))


def _lines(inventory: Inventory, library: Library) -> Iterator[str]:
    if not inventory.files and not inventory.pairs:
        yield "No models are here yet; `specchat pull` shows the pairs there are."
        return
    now = time.time()
    rows = []
    for pair, statuses in inventory.pairs:
        used = inventory.used.get(pair.name)
        rows.append(
            (
                pair.name,
                _state_text(pair_state(statuses), pair_percent(statuses)),
                format_bytes(sum(status.bytes for status in statuses)),
                console.age(now - used) if used else "never",
            )
        )
    if rows:
        yield from console.columns(rows, ("PAIR", "STATE", "SIZE", "LAST USED"), right={2})
        yield ""
    yield from console.columns(
        [
            (
                status.file.name,
                _state_text(status.state, status.percent),
                format_bytes(status.bytes),
                ", ".join(users) or "-",
                _where(status, library),
            )
            for status, users in inventory.files
        ],
        ("FILE", "STATE", "SIZE", "USED BY", "WHERE"),
        right={2},
    )
    for status in inventory.damaged:
        yield f"{status.file.name} is damaged: {status.reason}"
    yield ""
    yield f"{format_bytes(inventory.disk)} in {locations.tilde(library.models)}"


def _state_text(of: State, percent: int | None) -> str:
    partly = of in (State.PARTIAL, State.MISSING_SHARD)
    return f"{of} ({percent} %)" if partly and percent is not None else str(of)


def _where(status: FileStatus, library: Library) -> str:
    path = status.parts[0].path
    inside = path.is_relative_to(library.models)
    return str(path.relative_to(library.models)) if inside else locations.tilde(path)


def _document(inventory: Inventory, library: Library) -> dict[str, Any]:
    return {
        "pairs": [
            {
                "name": pair.name,
                "state": pair_state(statuses),
                "percent": pair_percent(statuses),
                "bytes": sum(status.bytes for status in statuses),
                "target": pair.target.name,
                "draft": pair.draft.name if pair.draft else None,
                "last_used": _iso(inventory.used.get(pair.name)),
                "own": pair.own,
            }
            for pair, statuses in inventory.pairs
        ],
        "files": [
            {
                "name": status.file.name,
                "state": status.state,
                "percent": status.percent,
                "bytes": status.bytes,
                "total_bytes": status.file.bytes,
                "reason": status.reason or None,
                "used_by": list(users),
                "paths": [str(part.path) for part in status.parts],
            }
            for status, users in inventory.files
        ],
        "disk_bytes": inventory.disk,
        "models_folder": str(library.models),
    }


def _iso(seconds: float | None) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds else None
