"""`specchat make-draft`: a draft for a target that has none, made from the target itself."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from specchat.commands.options import Number, target_options
from specchat.errors import SpecchatError

if TYPE_CHECKING:
    from specchat.lab.make_draft import Candidate, Sample, Search
    from specchat.lab.rig import Rig
    from specchat.pairs.catalog import Catalog, Pair
    from specchat.pairs.library import Library
    from specchat.session import Launch

_SAMPLES: Final = 0.15  # share of the time for the target's sample replies
_TOKENS: Final = 64  # of a sample reply
_SHOWN: Final = 10  # candidates in the table


@click.command("make-draft")
@target_options
@click.option("--minutes", metavar="N", type=Number(0.1), default=10.0, show_default=True, help="How long to search.")
@click.option("--name", "called", metavar="NAME", help="What to call the new pair.")
def command(name: str | None, minutes: float, called: str | None, **given: Any) -> None:
    """Make a draft model for a target that has none, out of the target itself.

    Tries the target in fewer bits and with layers left out; each candidate is judged by how often it agrees with the
    target on sample replies and by what it costs on this machine. The best predicted speed-up becomes a pair of yours,
    if any pays. Ctrl+C keeps the best so far.
    """
    from specchat.commands import opening
    from specchat.commands.options import Options
    from specchat.pairs import catalog
    from specchat.pairs.library import Library

    launch = opening.launch(Options.among(given), name)
    known, library = catalog.load(), Library.default()
    pair = _pair(known, launch, called)
    _make(launch, library, pair, minutes)


def _pair(known: Catalog, launch: Launch, called: str | None) -> Pair:
    """The pair to be, without its draft. Raises SpecchatError where the name is taken or not plain."""
    from specchat.pairs import own

    origin = known.pairs.get(launch.name)
    wanted = called or f"{origin.name if origin else launch.target.stem}-self"
    if wanted.lower() in map(str.lower, known.pairs):
        raise SpecchatError(f"there is a pair called {wanted} already; choose another --name")
    pair = own.make_pair(known, wanted, str(launch.target), None, ask=_no_hub)
    if origin is not None:
        pair = replace(pair, target=origin.target)
    return replace(pair, description=f"{launch.name} with a draft made from it")


def _no_hub(repo: str, path: str, revision: str | None) -> tuple[str, int, str | None]:
    raise AssertionError((repo, path, revision))  # a path is never asked for


def _make(launch: Launch, library: Library, pair: Pair, minutes: float) -> None:
    from specchat.commands import console
    from specchat.lab import make_draft, rig

    with rig.opened(launch.target, None, replace(launch.settings, exact=False)) as opened, _folder(library) as folder:
        console.say(opened.reasons)
        if opened.target.model.rollback_obstacle:
            raise SpecchatError(f"{launch.target.name} cannot speculate: {opened.target.model.rollback_obstacle}")
        search, interrupted = _search(opened, folder, minutes)
        if search is not None:
            click.echo("\n".join(_table(search)))
            if search.best is None and not interrupted:
                raise SpecchatError(f"no draft was made: {(*search.failures, search.stopped)[0]}")
            if search.best is not None and search.best.outlook.speed_up < make_draft.PAYS:
                _say(_verdict(search.best, "No draft made from this model pays here"))
            elif search.best is not None:
                made = make_draft.keep(search, library, pair)
                _say(_verdict(search.best, f"The new pair is called {made.name}; `specchat {made.name}` opens it"))
    if interrupted:
        raise KeyboardInterrupt


def _say(sentence: str) -> None:
    from specchat.commands import console

    click.echo("\n".join(console.wrapped([sentence])))


@contextmanager
def _folder(library: Library) -> Iterator[Path]:
    """For the candidates: on the disk that the models are on, and gone afterwards."""
    try:
        library.models.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(dir=library.models, prefix=".draft-", ignore_cleanup_errors=True)
    except OSError as error:
        raise SpecchatError(f"cannot write to {library.models}: {error.strerror}") from error
    with folder as name:
        yield Path(name)


def _search(rig: Rig, folder: Path, minutes: float) -> tuple[Search | None, bool]:
    """The search as far as it got, and whether Ctrl+C ended it."""
    from specchat.commands import console
    from specchat.engine.cache import Cancelled
    from specchat.lab import make_draft, prompts

    started = time.monotonic()
    samples: list[Sample] = []
    search = None
    try:
        console.follow(make_draft.write_samples(rig, prompts.BENCH, _TOKENS, _SAMPLES * 60.0 * minutes, samples))
        search = make_draft.Search(rig, samples, folder, minutes - (time.monotonic() - started) / 60.0)
        console.follow(search.run())
    except Cancelled:
        return search, True
    return search, False


def _table(search: Search) -> Iterator[str]:
    from specchat.commands import console
    from specchat.units import format_bytes

    best = sorted(search.candidates, key=lambda candidate: candidate.outlook.speed_up, reverse=True)
    rows = [
        (
            candidate.name,
            format_bytes(candidate.size),
            f"{candidate.agreement:.0%}",
            f"{1000.0 * candidate.step:.2f} ms",
            f"{candidate.outlook.speed_up:.2f} at depth {candidate.outlook.depth}",
        )
        for candidate in best[:_SHOWN]
    ]
    if rows:
        headers = ("CANDIDATE", "SIZE", "AGREES", "STEP", "PREDICTED SPEED-UP")
        yield from console.columns(rows, headers, frozenset((1, 2, 3)))
    yield f"{len(search.candidates)} candidates tried" + (f"; {search.stopped}" if search.stopped else "")


def _verdict(best: Candidate, what: str) -> str:
    return (
        f"{what}: the best, {best.name}, is predicted to run at {best.outlook.speed_up:.2f} x plain "
        f"(agrees in {best.agreement:.0%}; pays from {best.outlook.break_even:.0%} at depth {best.outlook.depth})."
    )
