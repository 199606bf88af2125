"""models.toml -> Catalog. The schema is described at the head of the shipped models.toml.

Contract: an entry that is wrong is one SpecchatError naming the file, the entry and the field; nothing is
skipped. The user's entries replace shipped ones of the same name, and may refer to shipped files.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from specchat import locations
from specchat.errors import SpecchatError
from specchat.pairs.catalog import (
    Catalog,
    HubSource,
    LeftOut,
    MadeSource,
    ModelFile,
    Pair,
    PathSource,
    Shard,
    Source,
    WheelSource,
    is_sha256,
)

T = TypeVar("T")

# The first key decides a file's kind; the fields each kind may have.
_KINDS: Final[Mapping[str, frozenset[str]]] = {
    "repo": frozenset({"repo", "file", "files", "commit", "bytes", "sha256"}),
    "package": frozenset({"package", "version", "member", "bytes", "sha256"}),
    "path": frozenset({"path", "bytes", "sha256"}),
    "base": frozenset({"base", "type", "prune_layers"}),
}
_PAIR_FIELDS: Final = frozenset(
    {"target", "draft", "description", "licence", "licence_notice", "context", "memory_gib", "suits"}
    | {"thinks", "sliding_window", "sampling"}
)
_SAMPLING: Final = frozenset({"temperature", "top_k", "top_p", "min_p", "repeat_penalty"})
_KIND_NAMES: Final[Mapping[type[object], str]] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}


@dataclass(frozen=True, slots=True)
class _Table:
    """One entry as TOML held it, with the file it stands in and its heading for messages."""

    source: Path
    heading: str
    values: Mapping[str, Any]

    def wrong(self, problem: str) -> SpecchatError:
        return SpecchatError(f"{locations.tilde(self.source)}: [{self.heading}]: {problem}")

    def get(self, key: str, kind: type[T]) -> T | None:
        value: Any = self.values.get(key)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool)):
            raise self.wrong(f"{key} must be {_KIND_NAMES[kind]}, not {value!r}")
        return value

    def need(self, key: str, kind: type[T]) -> T:
        value = self.get(key, kind)
        if value is None:
            raise self.wrong(f"{key} is missing")
        return value

    def only(self, allowed: frozenset[str]) -> None:
        for key in self.values:
            if key not in allowed:
                raise self.wrong(f"there is no field {key} here; allowed are {', '.join(sorted(allowed))}")

    def tables(self, key: str) -> Iterator[_Table]:
        for index, entry in enumerate(self.need(key, list)):
            if not isinstance(entry, dict):
                raise self.wrong(f"{key} must be a list of tables")
            yield _Table(self.source, f"{self.heading}.{key}.{index}", entry)

    @contextmanager
    def checking(self, key: str) -> Iterator[None]:
        """Turn the ValueError of a value's own check into an error that names this entry and `key`."""
        try:
            yield
        except ValueError as error:
            raise self.wrong(f"{key}: {error}") from error


def read(shipped: Path, own: Path | None = None) -> Catalog:
    """The catalogue in `shipped` with the entries of `own` over it. Raises SpecchatError (see the module)."""
    documents = [(path, _document(path)) for path in (shipped, own) if path is not None]
    sections: dict[str, dict[str, _Table]] = {"files": {}, "pairs": {}, "left_out": {}}
    for path, document in documents:
        top = _Table(path, "top level", document)
        top.only(frozenset(sections))
        for section, entries in sections.items():
            # A merged entry moves to the end, where the user's own are listed.
            for name, values in (top.get(section, dict) or {}).items():
                if not isinstance(values, dict):
                    raise top.wrong(f"{section}.{name} must be a table")
                entries.pop(name, None)
                entries[name] = _Table(path, f"{section}.{name}", values)
    files = {name: _file(name, table) for name, table in sections["files"].items()}
    _check_bases(files, sections["files"])
    pairs = {name: _pair(name, table, files, table.source == own) for name, table in sections["pairs"].items()}
    return Catalog(files, pairs, tuple(_left_out(table) for table in sections["left_out"].values()))


def _document(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SpecchatError(f"cannot read {locations.tilde(path)}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecchatError(f"{locations.tilde(path)} is not valid TOML: {error}") from error


def _file(name: str, table: _Table) -> ModelFile:
    kind = next((key for key in _KINDS if key in table.values), None)
    if kind is None:
        raise table.wrong(f"one of {', '.join(_KINDS)} must say where the file comes from")
    table.only(_KINDS[kind])
    size, digest = _facts(table)
    source = _source(kind, table)
    if isinstance(source, HubSource) and len(source.shards) > 1:
        sizes = [shard.bytes for shard in source.shards if shard.bytes is not None]
        size = sum(sizes) if len(sizes) == len(source.shards) else None
    with table.checking("name"):
        return ModelFile(name, source, size, digest)


def _facts(table: _Table) -> tuple[int | None, str | None]:
    size, digest = table.get("bytes", int), table.get("sha256", str)
    if size is not None and size <= 0:
        raise table.wrong(f"bytes must be above 0, not {size}")
    if digest is not None and not is_sha256(digest):
        raise table.wrong(f"sha256 must be 64 digits of lower-case hexadecimal, not {digest!r}")
    return size, digest


def _source(kind: str, table: _Table) -> Source:
    match kind:
        case "repo":
            shards = _shards(table)
            with table.checking("repo"):
                return HubSource(table.need("repo", str), shards, table.get("commit", str))
        case "package":
            with table.checking("package"):
                return WheelSource(*(table.need(key, str) for key in ("package", "version", "member")))
        case "path":
            # A relative path starts at the folder of the file it is written in.
            return PathSource(table.source.parent / locations.expanded(table.need("path", str)))
        case _:
            layers = table.get("prune_layers", list) or []
            if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in layers):
                raise table.wrong(f"prune_layers must be a list of layer numbers, not {layers!r}")
            return MadeSource(table.need("base", str), table.need("type", str), tuple(layers))


def _shards(table: _Table) -> tuple[Shard, ...]:
    if "files" not in table.values:
        with table.checking("file"):
            return (Shard(table.need("file", str), *_facts(table)),)
    for key in ("file", "bytes", "sha256"):
        if key in table.values:
            raise table.wrong(f"{key} belongs into the entries of files when there are several")
    entries = list(table.tables("files"))
    if not entries:
        raise table.wrong("files is empty")
    shards = []
    for entry in entries:
        entry.only(frozenset({"path", "bytes", "sha256"}))
        with entry.checking("path"):
            shards.append(Shard(entry.need("path", str), *_facts(entry)))
    return tuple(shards)


def _check_bases(files: Mapping[str, ModelFile], tables: Mapping[str, _Table]) -> None:
    for name, file in files.items():
        seen = [name]
        while isinstance(file.source, MadeSource):
            if file.source.base not in files:
                raise tables[file.name].wrong(f"base: there is no file {file.source.base}")
            file = files[file.source.base]
            if file.name in seen:
                raise tables[name].wrong(f"base: it is made from itself ({' <- '.join([*seen, file.name])})")
            seen.append(file.name)


def _pair(name: str, table: _Table, files: Mapping[str, ModelFile], own: bool) -> Pair:
    table.only(_PAIR_FIELDS)
    named = {key: table.get(key, str) for key in ("target", "draft")}
    for key, file in named.items():
        if file is not None and file not in files:
            raise table.wrong(f"{key}: there is no file {file}")
    suits = table.get("suits", str) or "any"
    if suits not in ("cpu", "gpu", "any"):
        raise table.wrong(f'suits must be "cpu", "gpu" or "any", not {suits!r}')
    return Pair(
        name=name,
        target=files[table.need("target", str)],
        draft=files[named["draft"]] if named["draft"] is not None else None,
        description=table.get("description", str) or "",
        licence=table.get("licence", str) or "",
        licence_notice=table.get("licence_notice", str) or "",
        context=table.get("context", int),
        memory_gib=table.get("memory_gib", float),
        suits=suits,
        thinks=table.get("thinks", bool) or False,
        sliding_window=table.get("sliding_window", bool) or False,
        sampling=_sampling(table),
        own=own,
    )


def _sampling(table: _Table) -> Mapping[str, float]:
    values = _Table(table.source, f"{table.heading}.sampling", table.get("sampling", dict) or {})
    values.only(_SAMPLING)
    return {key: values.need(key, float) for key in values.values}


def _left_out(table: _Table) -> LeftOut:
    table.only(frozenset({"names", "reason"}))
    patterns = table.need("names", list)
    if not patterns or not all(isinstance(pattern, str) for pattern in patterns):
        raise table.wrong("names must be a list of patterns in quotes")
    return LeftOut(tuple(pattern.lower() for pattern in patterns), table.need("reason", str))
