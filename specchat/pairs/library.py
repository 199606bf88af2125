"""What is installed: which model files are ready, partial, damaged or missing; verifying, removing, disk use.

Contract: a file counts as ready only once its hash was checked; the check leaves a record (path, size, time of
last change, hash) and is not repeated while size and time stay the same. `verify` hashes again whatever the
record says. Files outside the models folder (the user's own, or another program's) are read, never changed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from glob import escape
from pathlib import Path
from typing import Final

from specchat import locations
from specchat.errors import SpecchatError
from specchat.pairs import lock
from specchat.pairs.catalog import Catalog, MadeSource, ModelFile, Pair, Part, PathSource
from specchat.units import format_bytes

_CHUNK: Final = 4 * 1024**2


class State(StrEnum):
    """What a model file is good for, as `specchat list` prints it."""

    READY = "ready"
    UNCHECKED = "unchecked"  # the right size, but its hash was not checked yet
    PARTIAL = "partial"
    DAMAGED = "damaged"
    MISSING_SHARD = "missing shard"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Step:
    """One moment of long work: what is being done, and how far it is (bytes or parts; total None: unknown)."""

    text: str
    done: int = 0
    total: int | None = None
    in_bytes: bool = True


@dataclass(frozen=True, slots=True)
class PartStatus:
    """One file on disk of a model. `bytes` is what is here, of a download under way too."""

    part: Part
    path: Path
    state: State
    bytes: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class FileStatus:
    """A model file as found on disk. `reason` is one short phrase where the state is not READY."""

    file: ModelFile
    state: State
    parts: tuple[PartStatus, ...]

    @property
    def bytes(self) -> int:
        """Bytes here, of partial files too."""
        return sum(part.bytes for part in self.parts)

    @property
    def percent(self) -> int | None:
        """How much of it is here, 0 to 100; None where the whole size is not known."""
        if self.state is State.READY:
            return 100
        return min(99, self.bytes * 100 // self.file.bytes) if self.file.bytes else None

    @property
    def reason(self) -> str:
        """Why it is not ready."""
        return next((part.reason for part in self.parts if part.reason), "")


@dataclass(frozen=True, slots=True)
class Record:
    """The memory of one check. `sha256` is what the file should have; `damaged` that it had another."""

    path: str
    bytes: int
    mtime_ns: int
    sha256: str
    recipe: str = ""  # of a made file: how it was made
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class Removal:
    """What removing a pair deletes and what it keeps. `kept` says which pair still needs the file."""

    delete: tuple[Path, ...]
    freed: int
    kept: tuple[tuple[ModelFile, str], ...]


def recipe(file: ModelFile) -> str:
    """How a made file is made, as text; another recipe in the catalogue makes the file again. Else empty."""
    match file.source:
        case MadeSource(base=base, type=kind, prune_layers=layers):
            return f"{kind} of {base} without layers {list(layers)}"
        case _:
            return ""


def hash_file(path: Path, text: str) -> Generator[Step, None, str]:
    """Yield the progress of hashing `path` under the heading `text`; return its sha256."""
    digest, done, total = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            yield Step(text, done, total)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Library:
    """The models folder and the records of what in it was checked."""

    models: Path
    records: Path

    @classmethod
    def default(cls) -> Library:
        """The user's own, where `locations` puts it."""
        return cls(locations.models_dir(), locations.records_dir())

    # -- where files are ----------------------------------------------------------------------------------

    def install_path(self, part: Part) -> Path:
        """Where `pull` puts this part, or where the user's own file is."""
        return self.models / part.path

    def path(self, file: ModelFile) -> Path:
        """The file to give llama.cpp (a split model's first shard), wherever it was found."""
        return self._location(file.parts[0])

    def paths(self, file: ModelFile) -> tuple[Path, ...]:
        """All its files, in order."""
        return tuple(self._location(part) for part in file.parts)

    def _location(self, part: Part) -> Path:
        installed = self.install_path(part)
        record = self._read(part)
        return Path(record.path) if record and not installed.exists() else installed

    # -- what state they are in ---------------------------------------------------------------------------

    def status(self, file: ModelFile) -> FileStatus:
        """The state of a file by sizes, times and records; reads no model data."""
        parts = tuple(self._part_status(file, part) for part in file.parts)
        return FileStatus(file, _combined([part.state for part in parts]), parts)

    def installed(self, pair: Pair) -> bool:
        """Whether every file of the pair is ready."""
        return all(self.status(file).state is State.READY for file in pair.files)

    def _part_status(self, file: ModelFile, part: Part) -> PartStatus:
        path = self._location(part)
        try:
            stat = path.stat()
        except OSError:
            partial = sum(p.stat().st_size for p in self.partials(part))
            return PartStatus(part, path, State.PARTIAL if partial else State.MISSING, partial)
        if not path.is_file():
            return PartStatus(part, path, State.DAMAGED, 0, "not a file")
        reason = self._damage(file, part, stat.st_size)
        if reason:
            return PartStatus(part, path, State.DAMAGED, stat.st_size, reason)
        if isinstance(file.source, PathSource) and part.sha256 is None:
            return PartStatus(part, path, State.READY, stat.st_size)
        record = self._read(part)
        same = record and (record.path, record.bytes, record.mtime_ns) == (
            str(path),
            stat.st_size,
            stat.st_mtime_ns,
        )
        state = State.READY if same else State.UNCHECKED
        return PartStatus(part, path, state, stat.st_size, "" if same else "not checked yet")

    def _damage(self, file: ModelFile, part: Part, size: int) -> str:
        record = self._read(part)
        expected = part.bytes or (record.bytes if record else None)
        if expected is not None and size != expected:
            return f"{size:,} bytes instead of {expected:,}"
        if record and part.sha256 not in (None, record.sha256):
            return "not the version the catalogue names"
        if recipe(file) != (record.recipe if record else ""):
            return "not made as the catalogue says"
        return "hash does not match" if record and record.damaged else ""

    def partials(self, part: Part) -> list[Path]:
        """Downloads of this part that were not finished (`pull` names them FILE.ETAG.part)."""
        path = self.install_path(part)
        return sorted(path.parent.glob(f"{escape(path.name)}.*.part"))

    # -- records ------------------------------------------------------------------------------------------

    def _record_path(self, part: Part) -> Path:
        return self.records / f"{hashlib.sha256(part.path.as_posix().encode()).hexdigest()[:32]}.json"

    def _read(self, part: Part) -> Record | None:
        try:
            return Record(**json.loads(self._record_path(part).read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            return None  # a record that cannot be read only means that the file is checked again

    def record(
        self,
        part: Part,
        sha256: str,
        *,
        path: Path | None = None,
        recipe: str = "",
        damaged: bool = False,
    ) -> None:
        """Remember that this part was checked: installed in the models folder, or found at `path`.

        Call it after the rename that installs the file. `sha256` is the hash the file should have.
        """
        path = path or self.install_path(part)
        stat = path.stat()
        record = Record(str(path), stat.st_size, stat.st_mtime_ns, sha256, recipe, damaged)
        target = self._record_path(part)
        temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(asdict(record)), "utf-8")
        temporary.replace(target)

    # -- verifying ----------------------------------------------------------------------------------------

    def verify(self, file: ModelFile) -> Generator[Step, None, FileStatus]:
        """Hash what is here whole of the file, note the outcome, yield progress, return the new status.

        A file whose hash nobody knows (no catalogue entry, no record) is recorded as it is now.
        """
        for found in self.status(file).parts:
            if found.path.is_file() and found.bytes == (found.part.bytes or found.bytes):
                yield from self._verify(found)
        return self.status(file)

    def _verify(self, found: PartStatus) -> Iterator[Step]:
        before = self._read(found.part)
        expected = found.part.sha256 or (before.sha256 if before else None)
        actual = yield from hash_file(found.path, f"checking {found.path.name}")
        self.record(
            found.part,
            expected or actual,
            path=found.path,
            recipe=before.recipe if before else "",
            damaged=expected not in (None, actual),
        )

    # -- disk ---------------------------------------------------------------------------------------------

    def disk_use(self) -> int:
        """Bytes of everything in the models folder, unfinished downloads too."""
        return sum(path.stat().st_size for path in _files_under(self.models))

    def lock_path(self, part: Part) -> Path:
        """What whoever changes this part on disk holds meanwhile (`specchat.pairs.lock`)."""
        path = self.install_path(part)
        return path.with_name(f"{path.name}.lock")

    def removal(self, catalog: Catalog, pair: Pair) -> Removal:
        """What removing `pair` would delete: its files that no other pair here needs, and their bases."""
        others = [p for p in catalog.pairs.values() if p.name != pair.name and self._is_here(p)]
        keepers = {file.name: other.name for other in others for file in catalog.needed(other)}
        delete: list[Path] = []
        kept = []
        for file in catalog.needed(pair):
            if file.name in keepers:
                kept.append((file, keepers[file.name]))
            elif not isinstance(file.source, PathSource):
                delete += self._removable(file)
        return Removal(tuple(delete), sum(path.stat().st_size for path in delete), tuple(kept))

    def _is_here(self, pair: Pair) -> bool:
        """Whether something of its every file is here: still coming, or changed since its check, counts too."""
        return all(self.status(file).state is not State.MISSING for file in pair.files)

    def remove(self, catalog: Catalog, pair: Pair) -> Removal:
        """Delete what `removal` says, records and empty folders too.

        Raises SpecchatError, with nothing deleted, while another process downloads one of the files, or if one stays.
        """
        removal = self.removal(catalog, pair)
        kept = {file.name for file, _ in removal.kept}
        going = [file for file in catalog.needed(pair) if file.name not in kept]
        try:
            with ExitStack() as stack:
                for part in (part for file in going if not isinstance(file.source, PathSource) for part in file.parts):
                    if self.install_path(part).parent.is_dir():
                        stack.enter_context(lock.held(self.lock_path(part), partial(_refuse, part)))
                for path in removal.delete:
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise SpecchatError(f"cannot remove {locations.tilde(Path(error.filename))}: {error.strerror}") from error
        for part in (part for file in going for part in file.parts):
            self._record_path(part).unlink(missing_ok=True)
        self._prune_folders(removal.delete)
        return removal

    def _removable(self, file: ModelFile) -> Iterator[Path]:
        for part in file.parts:
            installed = self.install_path(part)
            yield from (path for path in (installed, *self.partials(part)) if path.is_file())

    def _prune_folders(self, paths: Iterable[Path]) -> None:
        folders = {folder for path in paths for folder in path.parents if self.models in folder.parents}
        # The deepest first: a folder can go only when those in it are gone.
        for folder in sorted(folders, key=lambda folder: len(folder.parts), reverse=True):
            with suppress(OSError):  # not empty
                folder.rmdir()


def _refuse(part: Part, who: str) -> None:
    raise SpecchatError(f"{part.path.name} is being downloaded by {who}: nothing was removed")


def _files_under(folder: Path) -> Iterator[Path]:
    for root, _, names in os.walk(folder):
        yield from (path for name in names if (path := Path(root, name)).is_file())


def _combined(states: list[State]) -> State:
    if len(set(states)) == 1:
        return states[0]
    for state in (State.DAMAGED, State.PARTIAL, State.MISSING):
        if state in states:
            return State.MISSING_SHARD if state is State.MISSING else state
    return State.UNCHECKED


def not_here(status: FileStatus, pair: Pair) -> SpecchatError:
    """The sentence for a file that only `pull` can bring."""
    match status.state:
        case State.DAMAGED:
            problem, cure = f"is damaged ({status.reason})", f"specchat pull --force {pair.name}"
        case State.PARTIAL | State.MISSING_SHARD:
            percent = "" if status.percent is None else f" ({status.percent} %)"
            problem, cure = f"is only partly here{percent}", f"specchat pull {pair.name}"
        case _:
            size = f" ({format_bytes(status.file.bytes)})" if status.file.bytes else ""
            problem, cure = f"is not here yet{size}", f"specchat pull {pair.name}"
    return SpecchatError(f"{status.file.name} of the pair {pair.name} {problem}; `{cure}` gets it")
