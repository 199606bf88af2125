"""Making a pair ready to open: fetches and makes what needs no model hub, checks what was not checked.

Contract: `prepare` yields steps to show and returns when every file of the pair is ready; nothing happens, and
nothing is yielded, when all is ready already. Two programs preparing at once: the second waits and says for whom.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator
from typing import Final

from specchat import locations
from specchat.errors import SpecchatError
from specchat.pairs import discovery, lock, made, wheel
from specchat.pairs.catalog import Catalog, MadeSource, ModelFile, Pair, PathSource, WheelSource
from specchat.pairs.library import Library, State, Step, hash_file, not_here, recipe

_POLL_SECONDS: Final = 0.5


def prepare(catalog: Catalog, library: Library, pair: Pair, places: Iterable[discovery.Place] = ()) -> Iterator[Step]:
    """Bring every file of `pair` to `State.READY`, yielding progress.

    A file of the hub that is not installed is looked for in `places` and used where it is. Raises
    SpecchatError when a file has to be pulled, is damaged, or could not be fetched or made.
    """
    if library.installed(pair):
        return
    yield from discovery.adopt_missing(library, catalog.needed(pair), places)
    try:
        library.models.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SpecchatError(f"cannot create {locations.tilde(library.models)}: {error.strerror}") from error
    with (yield from _locked(library)):
        for file in pair.files:
            yield from _ready(catalog, library, pair, file)


def _locked(library: Library) -> Generator[Step, None, lock.Held]:
    path = library.models / ".prepare.lock"
    while (taken := lock.attempt(path)) is None:
        yield Step(f"waiting for {lock.owner(path)}, which is preparing models")
        time.sleep(_POLL_SECONDS)
    return taken


def _ready(catalog: Catalog, library: Library, pair: Pair, file: ModelFile) -> Iterator[Step]:
    status = library.status(file)
    if status.state is State.UNCHECKED:
        status = yield from library.verify(file)
    if status.state is State.READY:
        return
    match file.source:
        case WheelSource():
            digest = yield from wheel.fetch(file, library.install_path(file.parts[0]))
            library.record(file.parts[0], digest)
        case MadeSource():
            yield from _make(catalog, library, pair, file)
        case PathSource(path=path) if status.state is State.MISSING:
            raise SpecchatError(f"{locations.tilde(path)}, named by the pair {pair.name}, is not there")
        case _:
            raise not_here(status, pair)


def _make(catalog: Catalog, library: Library, pair: Pair, file: ModelFile) -> Iterator[Step]:
    source = file.source
    assert isinstance(source, MadeSource)
    base = catalog.files[source.base]
    yield from _ready(catalog, library, pair, base)
    part = file.parts[0]
    path = library.install_path(part)
    role = "target" if file == pair.target else "draft"
    text = f"making the {pair.name} pair's {role} ({source.type})"
    yield from made.make(library.path(base), path, source.type, source.prune_layers, text)
    digest = yield from hash_file(path, f"checking the {pair.name} pair's {role}")
    library.record(part, digest, recipe=recipe(file))
