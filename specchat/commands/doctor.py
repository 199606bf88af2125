"""`specchat doctor`: what a bug report should contain, and whether two models may be paired.

Exit status 0: all is well; 1: something needs attention, said on standard error. An unreachable hub is no fault:
specchat works offline. Nothing secret is printed; the home folder is `~`.
"""

from __future__ import annotations

import os
from pathlib import Path

import click

from specchat import locations, offers, probe, settings
from specchat.commands import console, diagnosis
from specchat.commands.options import PairOrFile
from specchat.errors import SpecchatError
from specchat.pairs import candidates, catalog
from specchat.pairs.catalog import Catalog
from specchat.pairs.library import Library, State, not_here
from specchat.units import format_bytes


@click.command()
@click.argument("models", nargs=-1, metavar="[PAIR | TARGET [DRAFT]]", type=PairOrFile())
def command(models: tuple[str, ...]) -> None:
    """Check this installation, or whether two models may be paired.

    Without arguments: versions, llama.cpp's build and devices, memory, folders, the hub, the terminal. For a PAIR,
    or a TARGET and a DRAFT, every rule of compatibility with pass or FAIL. For a lone TARGET, the models that could
    be its draft. TARGET and DRAFT are files, or names from `specchat list`.
    """
    match models:
        case ():
            _machine()
        case (name,) if not _is_file(name):
            _pair(name)
        case (target,):
            known, library = catalog.load(), Library.default()
            _lone(known, library, _path(known, library, target))
        case (target, draft):
            known, library = catalog.load(), Library.default()
            _two(_path(known, library, target), _path(known, library, draft))
        case _:
            raise click.UsageError("doctor takes a PAIR, or a TARGET and its DRAFT")


def _machine() -> None:
    faults: list[str] = []
    for section in diagnosis.sections():
        click.echo(section.title)
        for line in console.columns([("", label, text) for label, text in section.lines]):
            click.echo(line)
        faults += section.faults
    if faults:
        raise SpecchatError("; ".join(faults))


# -- models -------------------------------------------------------------------------------------------------


def _pair(name: str) -> None:
    known, library = catalog.load(), Library.default()
    if name in known.files and name not in known.pairs:
        _lone(known, library, _path(known, library, name))
        return
    pair = known.pair(name)
    for file in pair.files:
        status = library.status(file)
        if status.state not in (State.READY, State.UNCHECKED):
            raise not_here(status, pair)
    target, *draft = (library.path(file) for file in pair.files)
    if draft:
        _two(target, draft[0])
    else:
        _lone(known, library, target)


def _two(target: Path, draft: Path) -> None:
    """Every rule with its outcome."""
    checks = [_smaller(target, draft), *probe.pair(target, draft)]
    click.echo(f"target  {locations.tilde(target)}")
    click.echo(f"draft   {locations.tilde(draft)}")
    for line in console.columns([("pass" if c.passed else "FAIL", c.rule, c.detail) for c in checks]):
        click.echo(line)
    failed = [check for check in checks if not check.passed]
    if failed:
        raise SpecchatError(f"{draft.name} cannot draft for {target.name}: {failed[0].detail}")
    click.echo("These two can be paired.")


def _smaller(target: Path, draft: Path) -> probe.Check:
    sizes = [_model_bytes(path) for path in (draft, target)]
    detail = f"{format_bytes(sizes[0])} against {format_bytes(sizes[1])}"
    return probe.Check("the draft is the smaller one", sizes[0] < sizes[1], detail)


def _lone(known: Catalog, library: Library, target: Path) -> None:
    """What could be its draft, here and in the catalogue."""
    offer = offers.for_target(known, library, target, settings.load().model_dirs)
    size = _model_bytes(target)
    click.echo(f"target  {locations.tilde(target)}  {format_bytes(size)}")
    if offer.obstacle:
        raise SpecchatError(f"{target.name} cannot be sped up by any draft: {offer.obstacle}")
    if offer.drafts:
        click.echo("On this machine, every rule checked, smallest first:")
        rows = [("", m.name, format_bytes(m.bytes), locations.tilde(m.path)) for m in offer.drafts]
        click.echo("\n".join(console.columns(rows, right={2})))
    else:
        click.echo(f"No model on this machine can draft for it ({offer.looked_at} smaller ones looked at).")
    family = candidates.family(target.name) or candidates.family(offer.name)
    rest = [file for file in candidates.catalogued(known, family, size) if not _is_here(library, file)]
    if rest:
        click.echo("In the catalogue, of the same family by name; checked once it is here:")
        lines = [("", f.name, format_bytes(f.bytes or 0), f"specchat pull {known.users(f)[0].name}") for f in rest]
        click.echo("\n".join(console.columns(lines, right={2})))
    if not offer.drafts and not rest:
        click.echo("n-gram look-up needs no draft: specchat --speculation ngram")


def _is_here(library: Library, file: catalog.ModelFile) -> bool:
    return library.status(file).state is State.READY


def _model_bytes(path: Path) -> int:
    """The model's size on disk, all shards of it."""
    return sum(path.with_name(name).stat().st_size for name in catalog.split_names(path.name))


def _is_file(text: str) -> bool:
    """Whether a file is meant; a plain word is a name, even where a file of that name lies about."""
    return text.endswith(".gguf") or "/" in text or os.sep in text


def _path(known: Catalog, library: Library, text: str) -> Path:
    """The file that a path or a name from the catalogue means. Raises SpecchatError when it is not here."""
    if text in known.files:
        status = library.status(known.files[text])
        if status.state not in (State.READY, State.UNCHECKED):
            raise not_here(status, known.users(known.files[text])[0])
        return library.path(known.files[text])
    path = locations.expanded(text)
    if not locations.is_file(path):
        raise SpecchatError(f"there is no file {text}, and no model of that name in the catalogue")
    return path
