"""Bringing pairs here: what is missing is asked of the hub, fetched, verified; what can be made is made.

Contract: `pull` is a generator of immutable values (see progress.py) and prints nothing. It ends when every
pair is ready and raises SpecchatError when one cannot be. Where nothing is missing it reads a few small files,
touches no network and yields nothing. Closing it stops the work and keeps what came so far.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specchat import locations
from specchat.errors import SpecchatError
from specchat.pairs import crew, discovery, prepare
from specchat.pairs.catalog import Catalog, HubSource, ModelFile, Pair, Part, Shard
from specchat.pairs.library import Library, State, Step
from specchat.pairs.progress import Event, Phase, Plan, PlannedFile, Progress
from specchat.units import format_bytes

if TYPE_CHECKING:
    from specchat.pairs.hub import Hub, Remote
    from specchat.pairs.transfer import Circumstances, Patience, Wanted

_AT_ONCE = 2  # a target and its draft


def pull(
    catalog: Catalog,
    library: Library,
    pairs: Sequence[Pair],
    *,
    hub: Callable[[], Hub] | None = None,
    patience: Patience | None = None,
    places: Iterable[discovery.Place] = (),
    force: bool = False,
    gentle: bool = False,
) -> Generator[Event, None, None]:
    """Make every pair ready, yielding what happens.

    `force` hashes again what counts as ready, so that damage is found and healed. `gentle` keeps hashing on
    one core, for a chat going on beside it. Files found whole in `places` are used where they are. `hub` is
    called only when something has to be fetched (default: what the environment names).
    """
    files = catalog.needed(*pairs)
    yield from _check(library, files, force)
    yield from _steps(discovery.adopt_missing(library, files, places))
    missing = [(file, part) for file in files for part in _missing(library, file)]
    if missing:
        yield from _fetch(_circumstances(library, hub, patience, gentle), missing)
    for pair in pairs:
        yield from _steps(prepare.prepare(catalog, library, pair))


def _circumstances(
    library: Library, hub: Callable[[], Hub] | None, patience: Patience | None, gentle: bool
) -> Circumstances:
    # Not before something is missing: a pull with nothing to do must not pay for loading the hub's client.
    from specchat.pairs.hub import Hub
    from specchat.pairs.transfer import Circumstances, Patience

    turn = threading.Lock() if gentle else contextlib.nullcontext()
    return Circumstances((hub or Hub.from_environment)(), library, threading.Event(), patience or Patience(), turn)


def _check(library: Library, files: Iterable[ModelFile], force: bool) -> Iterator[Progress]:
    """Hash what is here and was not hashed yet; with `force`, everything."""
    for file in files:
        state = library.status(file).state
        if state is State.UNCHECKED or (force and state is not State.MISSING):
            steps = library.verify(file)
            name = file.parts[0].path.name
            yield from (Progress(name, Phase.VERIFYING, s.done, s.total, s.text) for s in steps)
            ready = library.status(file).state is State.READY
            yield Progress(name, Phase.DONE if ready else Phase.DAMAGED)


def _missing(library: Library, file: ModelFile) -> list[Part]:
    """The parts that only the hub can give."""
    if not isinstance(file.source, HubSource):
        return []
    return [found.part for found in library.status(file).parts if found.state is not State.READY]


def _fetch(around: Circumstances, missing: Sequence[tuple[ModelFile, Part]]) -> Iterator[Event]:
    from specchat.pairs.transfer import Transfer, ask

    wanted = _wanted(missing)
    answers = yield from crew.work(wanted, lambda w, say: ask(around, w, say), around.stop, width=4)
    remotes = [answer for answer in answers if not isinstance(answer, SpecchatError)]
    _raise(answers)
    yield _plan(around, wanted, remotes)

    def transfer(job: tuple[Wanted, Remote], say: Callable[[Progress], None]) -> None:
        try:
            Transfer(around, *job, say).run()
        except SpecchatError as error:
            say(Progress(job[0].label, Phase.FAILED, note=str(error)))
            raise

    jobs = list(zip(wanted, remotes, strict=True))
    _raise((yield from crew.work(jobs, transfer, around.stop, width=_AT_ONCE)))


def _wanted(missing: Sequence[tuple[ModelFile, Part]]) -> list[Wanted]:
    from specchat.pairs.transfer import Wanted

    names = Counter(part.path.name for _, part in missing)
    wanted = []
    for file, part in missing:
        source = file.source
        assert isinstance(source, HubSource)
        label = part.path.name if names[part.path.name] == 1 else part.path.as_posix()
        wanted.append(Wanted(label, source.repo, _shard(source, part).path, source.revision, file, part))
    return wanted


def _shard(source: HubSource, part: Part) -> Shard:
    return next(shard for shard in source.shards if Path(source.repo, shard.path) == part.path)


def _plan(around: Circumstances, wanted: Sequence[Wanted], remotes: Sequence[Remote]) -> Plan:
    """What is to come. Raises SpecchatError where the disk has no room for it."""
    from specchat.pairs.transfer import part_path

    files = []
    for want, remote in zip(wanted, remotes, strict=True):
        path = part_path(around.library.install_path(want.part), remote)
        here = path.stat().st_size if path.exists() else 0
        files.append(PlannedFile(want.label, remote.size, here if here <= remote.size else 0))
    plan = Plan(tuple(files), free_space(around.library.models))
    if plan.missing > plan.free:
        raise SpecchatError(
            f"{format_bytes(plan.missing)} are still to come and the disk of "
            f"{locations.tilde(around.library.models)} has {format_bytes(plan.free)} free: make room, or set "
            f"{locations.HOME_VARIABLE} to a folder on another disk"
        )
    return plan


def free_space(folder: Path) -> int:
    """Bytes free on the disk that `folder` is on or would be made on."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _raise(outcomes: Iterable[object]) -> None:
    """Raise the failures among the outcomes, several as one."""
    failures = list(dict.fromkeys(str(o) for o in outcomes if isinstance(o, SpecchatError)))
    if failures:
        raise SpecchatError("\n".join(failures))


def _steps(steps: Iterator[Step]) -> Iterator[Progress]:
    """The work of other rooms, in the words of a download."""
    last = ""
    for step in steps:
        if last and step.text != last:
            yield Progress(last, Phase.DONE)
        last = step.text
        yield Progress(step.text, Phase.MAKING, step.done, step.total, in_bytes=step.in_bytes)
    if last:
        yield Progress(last, Phase.DONE)
