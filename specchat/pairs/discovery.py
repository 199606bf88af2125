"""Model files that are here already: other programs' folders and the user's own, looked through read-only.

Contract: nothing found is ever moved, changed or removed. A file of a pair is known by its size and name (or
by the hash that Ollama names it with) and used in place only after its sha256 was checked; one whose hash
nobody knows is not used for a pair.

Layouts: LM Studio keeps publisher/repository/file; llama.cpp's cache OWNER_REPOSITORY_file; the hub's client
models--OWNER--REPOSITORY/snapshots/COMMIT/file; Ollama blobs/sha256-HASH, named by JSON manifests.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specchat import locations
from specchat.pairs.catalog import HubSource, ModelFile, Part, is_sha256
from specchat.pairs.library import Library, State, Step, hash_file

_DEPTH: Final = 6  # folders deep; snapshots/COMMIT/SUBFOLDER of the hub's cache is 5
_OLLAMA_MODEL: Final = "application/vnd.ollama.image.model"


@dataclass(frozen=True, slots=True)
class Place:
    """A folder to look through, and whose it is."""

    owner: str  # "LM Studio", "Ollama", ...
    folder: Path


@dataclass(frozen=True, slots=True)
class Found:
    """A GGUF file outside the models folder. `name` is what its owner calls it."""

    path: Path
    owner: str
    name: str
    bytes: int
    sha256: str | None = None  # as claimed by its name; checked before use


def places(model_dirs: Iterable[Path] = ()) -> tuple[Place, ...]:
    """The folders that LM Studio, Ollama, llama.cpp and the hub's client use here, then `model_dirs`.

    The environment variables of those programs are honoured. The folders need not exist.
    """
    home = Path.home()
    cache = _cache_folder(home)
    hub = os.environ.get("HF_HUB_CACHE") or str(_from_env("HF_HOME", cache_home() / "huggingface") / "hub")
    return (
        Place("LM Studio", home / ".lmstudio" / "models"),
        Place("LM Studio", home / ".cache" / "lm-studio" / "models"),
        Place("Ollama", _from_env("OLLAMA_MODELS", home / ".ollama" / "models")),
        # Where Ollama's Linux installer puts the service's own.
        Place("Ollama", Path("/usr/share/ollama/.ollama/models")),
        Place("llama.cpp", _from_env("LLAMA_CACHE", cache / "llama.cpp")),
        Place("hub cache", locations.expanded(hub)),
        *(Place("model_dirs", locations.expanded(folder)) for folder in model_dirs),
    )


def cache_home() -> Path:
    """Where the hub's client starts from (huggingface_hub.constants): XDG_CACHE_HOME or ~/.cache."""
    return _from_env("XDG_CACHE_HOME", Path.home() / ".cache")


def _cache_folder(home: Path) -> Path:
    # llama.cpp's fs_get_cache_directory (common/common.cpp).
    if sys.platform == "darwin":
        return home / "Library" / "Caches"
    if sys.platform == "win32":
        return _from_env("LOCALAPPDATA", home / "AppData" / "Local")
    return cache_home()


def _from_env(variable: str, default: Path) -> Path:
    value = os.environ.get(variable)
    return locations.expanded(value) if value else default


def search(where: Iterable[Place]) -> tuple[Found, ...]:
    """Every GGUF file in these places, each real file once; unreadable folders are passed over."""
    found: dict[Path, Found] = {}
    for place in where:
        entries = _ollama(place) if (place.folder / "manifests").is_dir() else _walk(place)
        for entry in entries:
            found.setdefault(entry.path.resolve(), entry)
    return tuple(found.values())


def beside(model: Path) -> Iterator[Found]:
    """The GGUF files in the folder of another one; nothing if the folder cannot be read."""
    with suppress(OSError):
        for path in sorted(model.parent.glob("*.gguf")):
            if path.is_file():
                yield Found(path, "", path.name, path.stat().st_size)


def _walk(place: Place) -> Iterator[Found]:
    start = len(place.folder.parts)
    for root, folders, names in os.walk(place.folder):
        if len(Path(root).parts) - start >= _DEPTH:
            folders.clear()
        for name in sorted(names):
            path = Path(root, name)
            # is_file follows the links of the hub's cache and is False for a dangling one.
            if name.endswith(".gguf") and path.is_file():
                yield Found(path, place.owner, name, path.stat().st_size)


def _ollama(place: Place) -> Iterator[Found]:
    for root, _, names in os.walk(place.folder / "manifests"):
        for tag in sorted(names):
            yield from _manifest(place, Path(root, tag))


def _manifest(place: Place, path: Path) -> Iterator[Found]:
    try:
        layers = json.loads(path.read_text("utf-8"))["layers"]
        digests = [layer["digest"] for layer in layers if layer["mediaType"] == _OLLAMA_MODEL]
    except (OSError, ValueError, KeyError, TypeError):
        return  # another program's file in a form we do not know
    for digest in digests:
        sha256 = str(digest).removeprefix("sha256:")
        blob = place.folder / "blobs" / f"sha256-{sha256}"
        if is_sha256(sha256) and blob.is_file():
            name = f"{path.parent.name}:{path.name}"
            yield Found(blob, place.owner, name, blob.stat().st_size, sha256)


def adopt(library: Library, file: ModelFile, found: Iterable[Found]) -> Generator[Step, None, bool]:
    """Use `file` where another program keeps it, if it is there whole and its hash is right.

    Yields the hashing's progress; returns whether the file is ready now. The shards of a split model must
    stand in one folder under their own names, as llama.cpp looks for them.
    """
    if library.status(file).state is State.READY:
        return True
    for paths in _candidates(file, tuple(found)):
        hashes = []
        for part, entry in zip(file.parts, paths, strict=True):
            try:
                digest = yield from hash_file(entry.path, f"checking {entry.name} of {entry.owner}")
            except OSError:
                break
            if digest != part.sha256:
                break
            hashes.append((part, entry.path, digest))
        if len(hashes) == len(file.parts):
            for part, path, digest in hashes:
                library.record(part, digest, path=path)
            return True
    return False


def adopt_missing(library: Library, files: Iterable[ModelFile], where: Iterable[Place]) -> Iterator[Step]:
    """Adopt each of the hub's `files` that is not installed, where one of these places has it."""
    missing = [
        file
        for file in files
        if isinstance(file.source, HubSource)
        and library.status(file).state in (State.MISSING, State.PARTIAL, State.MISSING_SHARD)
    ]
    found = search(where) if missing else ()
    for file in missing:
        yield from adopt(library, file, found)


def _candidates(file: ModelFile, found: tuple[Found, ...]) -> Iterator[tuple[Found, ...]]:
    parts = file.parts
    if any(part.sha256 is None or part.bytes is None for part in parts):
        return
    for first in found:
        if not _fits(first, parts[0]):
            continue
        rest = [
            next((f for f in found if f.path == first.path.with_name(part.path.name) and _fits(f, part)), None)
            for part in parts[1:]
        ]
        whole = [first, *(entry for entry in rest if entry is not None)]
        if len(whole) == len(parts):
            yield tuple(whole)


def _fits(found: Found, part: Part) -> bool:
    if found.bytes != part.bytes:
        return False
    if found.sha256 is not None:
        return found.sha256 == part.sha256
    name, wanted = found.name.lower(), part.path.name.lower()
    return name == wanted or name.endswith("_" + wanted)
