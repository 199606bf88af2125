"""Which models could draft for a target that has no draft: those on this machine, and those of the catalogue.

Contract: names and sizes only. Whether a model on disk may really draft is `specchat.probe`'s to say; one that is
not here can only be told by its family's name, and is checked once it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specchat.pairs.catalog import Catalog, ModelFile
from specchat.pairs.discovery import Found
from specchat.pairs.library import Library, State

# "Qwen2.5-7B-Instruct" -> qwen 2, "Meta-Llama-3.1-8B" -> llama 3: one vocabulary within a major version.
_FAMILY: Final = re.compile(r"(?:^|[^a-z])([a-z]+?)[-_ ]?(\d)(?=[.:\-_ ])")


@dataclass(frozen=True, slots=True)
class Local:
    """A model on this machine. `name` is what its owner calls it."""

    path: Path
    name: str
    bytes: int


def local(catalog: Catalog, library: Library, found: Iterable[Found], target: Path) -> list[Local]:
    """Every model here that is smaller than `target`, smallest first; a shard after the first is no model."""
    models = {}
    for file in catalog.files.values():
        status = library.status(file)
        if status.state is State.READY:
            models[library.path(file).resolve()] = Local(library.path(file), file.name, status.bytes)
    for entry in found:
        if not re.search(r"-0000[2-9]-of-|-000[1-9]\d-of-", entry.name):
            models.setdefault(entry.path.resolve(), Local(entry.path, entry.name, entry.bytes))
    size = target.stat().st_size
    smaller = [model for path, model in models.items() if model.bytes < size and path != target.resolve()]
    return sorted(smaller, key=lambda model: model.bytes)


def family(name: str) -> tuple[str, str] | None:
    """The family and major version that a file's or model's name tells, in lower case; None where it tells none."""
    match = _FAMILY.search(name.lower())
    return (match[1], match[2]) if match else None


def catalogued(catalog: Catalog, of: tuple[str, str] | None, size: int) -> list[ModelFile]:
    """Drafts of the catalogue of that family, smaller than `size` bytes, smallest first."""
    drafts = {pair.draft.name: pair.draft for pair in catalog.pairs.values() if pair.draft is not None}
    fitting = [f for f in drafts.values() if of and family(f.name) == of and 0 < (f.bytes or 0) < size]
    return sorted(fitting, key=lambda file: file.bytes or 0)
