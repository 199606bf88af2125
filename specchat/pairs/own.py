"""The user's own pairs: from what was typed to an entry in their models.toml.

Contract: entries are added at the end of the file, or cut out; its text otherwise stays as it is. The file is
replaced as a whole or not at all, by one process at a time, after another look at what is in it. What a hub reference
names is asked of the hub first, so that the entry pins its commit, sizes and hashes, and a mistyped name never becomes
an entry.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import chain, count
from pathlib import Path

from specchat import locations, magic
from specchat.errors import SpecchatError
from specchat.pairs import lock
from specchat.pairs.catalog import (
    Catalog,
    HubSource,
    MadeSource,
    ModelFile,
    Pair,
    PathSource,
    Shard,
    Source,
    hub_source,
    load,
)

Ask = Callable[[str, str, str | None], tuple[str, int, str | None]]  # repo, path, revision -> commit, size, sha256


def source(reference: str) -> Source:
    """What `hf:OWNER/REPO/FILE.gguf` or the path of a GGUF file names. Raises SpecchatError."""
    if reference.startswith("hf:"):
        return hub_source(reference)
    path = locations.expanded(reference)
    if obstacle := magic.obstacle(path):
        hint = "" if locations.exists(path) else "; a file on the hub is written hf:OWNER/REPO/FILE.gguf"
        raise SpecchatError(f"{obstacle}{hint}")
    return PathSource(path.absolute())


def make_pair(catalog: Catalog, name: str, target: str, draft: str | None, ask: Ask) -> Pair:
    """The pair that these references describe; files that the catalogue has already are its files.

    Raises SpecchatError: a name that is taken or not plain, a reference that names nothing.
    """
    _file_named(name)
    files = {
        role: _file(catalog, f"{name}-{role}", source(reference), ask)
        for role, reference in (("target", target), ("draft", draft))
        if reference is not None
    }
    pair = Pair(name, files["target"], files.get("draft"), description="your own pair", own=True)
    taken = next((known for known in catalog.pairs.values() if known.name.lower() == name.lower()), None)
    if taken is not None and not (taken.own and taken.files == pair.files):
        raise SpecchatError(f"there is a pair called {taken.name} already; choose another --name")
    return pair


def _file(catalog: Catalog, name: str, what: Source, ask: Ask) -> ModelFile:
    for known in catalog.files.values():
        if _same(known.source, what):
            return known
    return _described(name, what, ask)


def _file_named(name: str) -> ModelFile:
    try:
        return ModelFile(name, PathSource(Path()))
    except ValueError as error:
        raise SpecchatError(f"--name: {error}") from error


def _same(known: Source, wanted: Source) -> bool:
    match known, wanted:
        case (HubSource(repo=repo, shards=shards), HubSource()):
            return repo == wanted.repo and [s.path for s in shards] == [s.path for s in wanted.shards]
        case _:
            return known == wanted


def _described(name: str, what: Source, ask: Ask) -> ModelFile:
    if isinstance(what, PathSource):
        return replace(_file_named(name), source=what, bytes=what.path.stat().st_size)
    assert isinstance(what, HubSource)
    answers = [(shard.path, *ask(what.repo, shard.path, what.revision)) for shard in what.shards]
    shards = tuple(Shard(path, size, sha256) for path, _, size, sha256 in answers)
    whole = shards[0] if len(shards) == 1 else None
    return replace(
        _file_named(name),
        source=replace(what, shards=shards, revision=answers[0][1]),
        bytes=sum(size for _, _, size, _ in answers),
        sha256=whole.sha256 if whole else None,
    )


def free_name(catalog: Catalog, name: str) -> str:
    """`name`, or with a number behind it where a pair or a file of its has that name already."""
    taken = {known.lower() for known in (*catalog.pairs, *catalog.files)}
    names = chain([name], (f"{name}-{n}" for n in count(2)))
    return next(name for name in names if not taken & {name.lower(), f"{name}-draft".lower()})


def add(pair: Pair, path: Path | None = None) -> None:
    """Write the pair, and those of its files that the catalogue lacks, into the user's models.toml.

    The file is read again for it: since the pair was thought of, another process may have written there. Raises
    SpecchatError where the name is another pair's by now.
    """
    path = path or locations.user_catalog_file()
    try:
        with _alone(path):
            catalog = load(path)
            if catalog.pairs.get(pair.name, pair).files != pair.files:
                raise SpecchatError(f"there is a pair called {pair.name} already; choose another --name")
            if pair.name in catalog.pairs:
                return
            tables = [line for file in pair.files if not _is_known(catalog, file) for line in _file_lines(file)]
            text = "\n".join([*tables, *_pair_lines(pair), ""])
            before = path.read_text("utf-8") if path.exists() else "# Your own pairs; see models.toml of specchat.\n"
            _replace(path, f"{before.rstrip()}\n\n{text}")
    except OSError as error:
        raise SpecchatError(f"cannot write {locations.tilde(path)}: {error.strerror}") from error


def _is_known(catalog: Catalog, file: ModelFile) -> bool:
    known = catalog.files.get(file.name)
    if known is not None and known.source != file.source:
        raise SpecchatError(f"there is a file called {file.name} already; choose another --name")
    return known is not None


def _alone(path: Path) -> AbstractContextManager[None]:
    """No other process changes the file meanwhile. It takes milliseconds, so nobody is told of waiting."""
    return lock.held(path.with_name(f"{path.name}.lock"), lambda _: None, poll=0.02)


def remove(catalog: Catalog, pair: Pair, path: Path | None = None) -> None:
    """Take the pair out of the user's models.toml, with those of its files there that no other pair names.

    Everything else in the file stays as it is. Raises SpecchatError when the entry has a form that cannot be
    cut out safely, or the file cannot be written.
    """
    path = path or locations.user_catalog_file()
    lone = [file.name for file in catalog.needed(pair) if len(catalog.users(file)) == 1]
    going = {("pairs", pair.name), *(("files", name) for name in lone)}
    try:
        with _alone(path):
            before = path.read_text("utf-8")
            after = "".join(_without(before, going))
            if pair.name in tomllib.loads(after).get("pairs", {}):
                raise ValueError
            _replace(path, after)
    except OSError as error:
        raise SpecchatError(f"cannot write {locations.tilde(path)}: {error.strerror}") from error
    except ValueError as error:
        raise SpecchatError(
            f"the entry of {pair.name} could not be cut out of {locations.tilde(path)}; remove it by hand"
        ) from error


def _without(text: str, going: Collection[tuple[str, str]]) -> Iterator[str]:
    """The lines of a TOML text without these tables; comments stay, as they may belong to what follows."""
    dropping = False
    for line in text.splitlines(keepends=True):
        if line.startswith("["):
            dropping = _heading(line) in going
        if not dropping or line.startswith("#"):
            yield line


def _heading(line: str) -> tuple[str, ...]:
    keys: list[str] = []
    table = tomllib.loads(line)
    while table:
        (key, table), *_ = table.items()
        keys.append(key)
    return tuple(keys[:2])


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, "utf-8")
    temporary.replace(path)


def _pair_lines(pair: Pair) -> list[str]:
    named = {"target": pair.target.name, "draft": pair.draft.name if pair.draft else None}
    return [
        f"[pairs.{_text(pair.name)}]",
        *(f"{role} = {_text(name)}" for role, name in named.items() if name is not None),
        f"description = {_text(pair.description)}",
    ]


def _file_lines(file: ModelFile) -> Iterator[str]:
    yield f"[files.{_text(file.name)}]"
    match file.source:
        case HubSource(repo=repo, shards=shards, revision=revision):
            yield f"repo = {_text(repo)}"
            if revision is not None:
                yield f"commit = {_text(revision)}"
            if len(shards) > 1:
                yield "files = ["
                yield from (f"  {{ path = {_text(s.path)}{_facts(s.bytes, s.sha256, ', ')} }}," for s in shards)
                yield "]"
            else:
                yield f"file = {_text(shards[0].path)}{_facts(file.bytes, file.sha256, chr(10))}"
        case MadeSource(base=base, type=kind, prune_layers=layers):
            yield f"base = {_text(base)}"
            yield f"type = {_text(kind)}"
            if layers:
                yield f"prune_layers = {list(layers)}"
        case PathSource(path=where):
            yield f"path = {_text(str(where))}{_facts(file.bytes, file.sha256, chr(10))}"
    yield ""


def _facts(size: int | None, sha256: str | None, between: str) -> str:
    facts = [f"bytes = {size}"] if size is not None else []
    facts += [f"sha256 = {_text(sha256)}"] if sha256 is not None else []
    return "".join(between + fact for fact in facts)


def _text(value: str) -> str:
    """As a TOML string, which JSON's are but for DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
