"""`specchat remove`: delete a pair's files, but not what another installed pair uses."""

from __future__ import annotations

import sys

import click

from specchat import locations
from specchat.commands.options import PairToRemove
from specchat.errors import SpecchatError
from specchat.pairs import catalog, own
from specchat.pairs.library import Library, Removal
from specchat.units import format_bytes


@click.command()
@click.argument("name", type=PairToRemove())
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def command(name: str, yes: bool) -> None:
    """Delete the files of the pair NAME and say what was freed.

    A file that another installed pair uses stays; so do files of your own and of other programs. A pair of
    your own is taken out of your models.toml too.
    """
    known, library = catalog.load(), Library.default()
    pair = known.pair(name)
    removal = library.removal(known, pair)
    if not removal.delete and not pair.own:
        raise SpecchatError(f"nothing of {pair.name} is in {locations.tilde(library.models)}")
    for line in _plan(removal):
        click.echo(line)
    if not yes:
        _ask(f"Remove {pair.name}?")
    removal = library.remove(known, pair)
    if pair.own:
        own.remove(known, pair)
    click.echo(f"{pair.name} removed; {format_bytes(removal.freed)} freed")


def _plan(removal: Removal) -> list[str]:
    goes = [f"deletes  {locations.tilde(path)}  {format_bytes(path.stat().st_size)}" for path in removal.delete]
    stays = [f"keeps    {file.name}, used by {user}" for file, user in removal.kept]
    return [*goes, *stays]


def _ask(question: str) -> None:
    if not sys.stdin.isatty():
        raise SpecchatError("there is no terminal to ask on; give --yes to remove without asking")
    if not click.confirm(question):
        raise SpecchatError("nothing was removed")
