"""The catalogue: models.toml and the user's own entries -> `Pair`, `ModelFile`.

Contract: pure values; reading the catalogue touches no network and no model file. Where files lie on disk is
`library.py`'s business, fetching them is `pull.py`'s. The schema of the file is described at the head of the
shipped models.toml and read by `reader.py`.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final, TypeAlias

from specchat import locations
from specchat.errors import SpecchatError

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_REPO: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
# What Windows forbids in a name, the separators of both worlds among it.
_FORBIDDEN: Final = re.compile(r'[\x00-\x1f\x7f<>:"|?*\\]')
# llama.cpp finds the shards of a split model by this name (llama_split_path).
_SPLIT: Final = re.compile(r"(?P<stem>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf")


def check_inside(path: str) -> None:
    """Raise ValueError unless `path` stays inside the folder it is joined to, on any operating system."""
    parts = path.split("/")
    if not path or path.startswith("/") or ".." in parts or "." in parts or "" in parts:
        raise ValueError(f"{path!r} leaves the models folder or is not a plain relative path")
    if _FORBIDDEN.search(path) or any(part != part.rstrip(" .") for part in parts):
        raise ValueError(f"{path!r} is not a portable path")


def _check(pattern: re.Pattern[str], value: str, what: str) -> None:
    if not pattern.fullmatch(value):
        raise ValueError(f"{value!r} is not {what}")


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of a model as the hub holds it. Unknown facts are None and asked of the hub by `pull`."""

    path: str  # inside the repository
    bytes: int | None = None
    sha256: str | None = None

    def __post_init__(self) -> None:
        check_inside(self.path)


@dataclass(frozen=True, slots=True)
class HubSource:
    """A file, or the shards of a split one, in a Hugging Face repository."""

    repo: str
    shards: tuple[Shard, ...]
    revision: str | None = None  # a commit; None follows the repository's main branch

    def __post_init__(self) -> None:
        _check(_REPO, self.repo, "a repository (OWNER/NAME)")


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A file carried as package data by a wheel of the Python package index."""

    package: str
    version: str
    member: str

    def __post_init__(self) -> None:
        _check(_NAME, self.package, "a package name")
        _check(_NAME, self.version, "a version")
        check_inside(self.member)


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
class Part:
    """One file on disk of a model. `path` is relative to the models folder (absolute for a PathSource)."""

    path: Path
    bytes: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One model as a file (or shards) on disk; several pairs may name the same one, it is stored once."""

    name: str  # key in the catalogue
    source: Source
    bytes: int | None = None  # in total, over all shards
    sha256: str | None = None  # of a model that is one file; shards carry their own

    def __post_init__(self) -> None:
        _check(_NAME, self.name, "a plain name (letters, digits, . _ + -)")

    @property
    def parts(self) -> tuple[Part, ...]:
        """The files it consists of on disk, in order; llama.cpp is given the first."""
        match self.source:
            case HubSource(repo=repo, shards=shards):
                return tuple(Part(Path(repo, s.path), s.bytes, s.sha256) for s in shards)
            case WheelSource(package=package, member=member):
                return (Part(Path(package, PurePosixPath(member).name), self.bytes, self.sha256),)
            case PathSource(path=path):
                return (Part(path, self.bytes, self.sha256),)
            case MadeSource():
                return (Part(Path("made", f"{self.name}.gguf"), self.bytes, self.sha256),)


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
    sampling: Mapping[str, float] = field(default_factory=dict)  # overrides of the sampling defaults, by name
    own: bool = False  # from the user's models.toml

    @property
    def files(self) -> tuple[ModelFile, ...]:
        """Target, then draft if there is one."""
        return (self.target,) if self.draft is None else (self.target, self.draft)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Models that cannot be a pair, by shell patterns of the names people ask for, and why."""

    patterns: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Catalog:
    """Every pair and file known, shipped and the user's own, in the order of the files."""

    files: Mapping[str, ModelFile]
    pairs: Mapping[str, Pair]
    left_out: tuple[LeftOut, ...] = ()

    def pair(self, name: str) -> Pair:
        """The pair of that name, capitals aside. Raises SpecchatError with suggestions or the reason."""
        wanted = name.lower()
        for pair in self.pairs.values():
            if pair.name.lower() == wanted:
                return pair
        reason = self.why_left_out(name)
        if reason:
            raise SpecchatError(f"{name} is left out of the catalogue on purpose: {reason}")
        near = self.suggestions(name)
        hint = f"did you mean {' or '.join(near)}?" if near else "`specchat pull` shows the pairs there are"
        raise SpecchatError(f"there is no pair called {name}; {hint}")

    def why_left_out(self, name: str) -> str | None:
        """Why models of that name are not offered, or None when nothing is known about them."""
        wanted = name.lower()
        hits = (e.reason for e in self.left_out for p in e.patterns if fnmatch.fnmatchcase(wanted, p))
        return next(hits, None)

    def suggestions(self, name: str, count: int = 3) -> list[str]:
        """Names of pairs that someone who typed `name` may have meant, likeliest first."""
        wanted = name.lower()
        near = difflib.get_close_matches(wanted, self.pairs, n=count, cutoff=0.6)
        return near or [pair for pair in self.pairs if wanted in pair][:count]

    def lineage(self, file: ModelFile) -> tuple[ModelFile, ...]:
        """What must be here before `file` can be, base first, `file` itself last."""
        match file.source:
            case MadeSource(base=base):
                return (*self.lineage(self.files[base]), file)
            case _:
                return (file,)

    def needed(self, *pairs: Pair) -> tuple[ModelFile, ...]:
        """Every file the pairs need, bases included, each once and after its base."""
        return tuple({f.name: f for p in pairs for file in p.files for f in self.lineage(file)}.values())

    def users(self, file: ModelFile) -> tuple[Pair, ...]:
        """The pairs that need `file`, directly or as a base."""
        return tuple(pair for pair in self.pairs.values() if file in self.needed(pair))

    def download_bytes(self, pair: Pair) -> int | None:
        """Bytes that fetching the whole pair takes, or None where a size is not known."""
        fetched = [f.bytes for f in self.needed(pair) if isinstance(f.source, HubSource | WheelSource)]
        known = [size for size in fetched if size is not None]
        return sum(known) if len(known) == len(fetched) else None


def hub_source(reference: str) -> HubSource:
    """The source that `hf:OWNER/REPO/FILE.gguf` names; any shard of a split model names all of them.

    Raises SpecchatError when the reference has another form.
    """
    parts = reference.removeprefix("hf:").split("/")
    try:
        if not reference.startswith("hf:") or len(parts) < 3 or not parts[-1].endswith(".gguf"):
            raise ValueError(f"{reference!r} is not of the form hf:OWNER/REPO/FILE.gguf")
        paths = split_names("/".join(parts[2:]))
        return HubSource("/".join(parts[:2]), tuple(Shard(path) for path in paths))
    except ValueError as error:
        raise SpecchatError(str(error)) from error


def split_names(path: str) -> tuple[str, ...]:
    """Every shard's name, in order, of the split model that `path` belongs to; (path,) for a whole one."""
    match = _SPLIT.fullmatch(path)
    if match is None:
        return (path,)
    count = int(match["count"])
    return tuple(f"{match['stem']}-{no:05}-of-{count:05}.gguf" for no in range(1, count + 1))


def shipped_file() -> Path:
    """The models.toml that came with the program: inside an installed package, at the root of a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "models.toml"
    return installed if installed.exists() else package.parent / "models.toml"


def is_sha256(text: str) -> bool:
    """Whether `text` is a sha256 in lower-case hexadecimal."""
    return _SHA256.fullmatch(text) is not None


def load(user_file: Path | None = None) -> Catalog:
    """The shipped catalogue with the user's own entries over it.

    `user_file` defaults to models.toml in the config folder; it need not exist. Raises SpecchatError naming
    file, entry and field of the first thing that is wrong.
    """
    from specchat.pairs import reader  # it builds this module's values

    own = user_file or locations.user_catalog_file()
    return reader.read(shipped_file(), own if own.exists() else None)
