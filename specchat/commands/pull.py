"""`specchat pull`: show the pairs there are, fetch some, add one of one's own.

Exit status 0: everything asked for is ready; 1: something is not, the reason is on standard error;
130: interrupted, what came so far is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.text import Text

from specchat import locations, offers, settings
from specchat.commands import download_view
from specchat.commands.console import columns, unwinding, wrapped
from specchat.commands.options import PairName
from specchat.errors import SpecchatError
from specchat.pairs import catalog as catalogs
from specchat.pairs import choosing, discovery, own
from specchat.pairs import pull as pulling
from specchat.pairs.catalog import Catalog, Pair
from specchat.pairs.choosing import Choice, Machine
from specchat.pairs.library import Library
from specchat.pairs.progress import Overview
from specchat.units import format_bytes

if TYPE_CHECKING:
    from specchat.pairs.own import Ask


@click.command("pull")
@click.argument("names", nargs=-1, metavar="[PAIR]...", type=PairName())
@click.option("--target", metavar="FILE", help="The target of a pair of your own: hf:OWNER/REPO/FILE.gguf or a path.")
@click.option("--draft", metavar="FILE", help="Its draft; left out, the pair speculates by n-gram look-up.")
@click.option("--name", metavar="NAME", help="What to call a pair of your own.")
@click.option("--force", is_flag=True, help="Check the hash of what is here again, and fetch what is damaged.")
def command(
    names: tuple[str, ...],
    target: str | None,
    draft: str | None,
    name: str | None,
    force: bool,
) -> None:
    """Fetch PAIRs, verified and resumable; without a name, show the pairs there are.

    HF_ENDPOINT names a mirror, HF_TOKEN a token for gated models.
    """
    catalog, library = catalogs.load(), Library.default()
    if target or draft or name:
        catalog, pair = _add_own(catalog, names, target, draft, name)
        names = (pair.name,)
    if not names:
        _show_choices(Console(highlight=False), catalog, library)
        return
    pairs = list({pair.name: pair for pair in map(catalog.pair, names)}.values())
    _pull(catalog, library, pairs, force)


def _pull(catalog: Catalog, library: Library, pairs: Sequence[Pair], force: bool) -> None:
    """Bring the pairs here, showing how that goes."""
    console = Console(stderr=True, highlight=False)
    waiting = [pair for pair in pairs if not library.installed(pair)]
    for notice in dict.fromkeys(pair.licence_notice for pair in waiting if pair.licence_notice):
        console.print(Text(notice), soft_wrap=True)
    places = discovery.places(settings.load().model_dirs)
    overview = Overview()
    events = pulling.pull(catalog, library, pairs, places=places, force=force)
    try:
        with unwinding():
            download_view.show(events, console, overview)
    except KeyboardInterrupt:
        came = f"{format_bytes(overview.done)} of {format_bytes(overview.total)} are here; " if overview.plan else ""
        click.echo(f"stopped: {came}the same command goes on from there", err=True)
        raise
    finally:
        events.close()
    for pair in pairs:
        already = "is ready" if pair in waiting or force else "is here already"
        click.echo(f"{pair.name} {already}: specchat {pair.name}")


# -- one's own pairs ----------------------------------------------------------------------------------------


def _add_own(
    catalog: Catalog, names: Sequence[str], target: str | None, draft: str | None, name: str | None
) -> tuple[Catalog, Pair]:
    """Write the user's own entry; the catalogue with it, and the pair."""
    if names or target is None or name is None:
        raise click.UsageError("a pair of your own takes --target, --name and, if it has one, --draft; no PAIR")
    pair = own.make_pair(catalog, name, target, draft, _asker())
    own.add(pair)
    click.echo(f"{pair.name} is in {locations.tilde(locations.user_catalog_file())}")
    catalog = catalogs.load()
    return catalog, catalog.pair(pair.name)


def _asker() -> Ask:
    def ask(repo: str, path: str, revision: str | None) -> tuple[str, int, str | None]:
        from specchat.pairs.hub import Hub  # only when a pair names a file on the hub

        remote = Hub.from_environment().ask(repo, path, revision)
        return remote.commit, remote.size, remote.sha256

    return ask


# -- the table ----------------------------------------------------------------------------------------------


def _show_choices(console: Console, catalog: Catalog, library: Library) -> None:
    machine = offers.machine(library)
    of = choosing.choices(catalog, library, machine)
    proposed = choosing.proposal(of, machine)
    for line in _table(of, proposed):
        console.print(line, soft_wrap=True)
    console.print(Text(f"{format_bytes(machine.disk_free)} free in {locations.tilde(library.models)}"), soft_wrap=True)
    if proposed is None:
        raise SpecchatError("no pair fits this machine's memory and disk; the table says what each needs")
    console.print(Text(_proposal(proposed, machine)), soft_wrap=True)


def _proposal(proposed: Choice, machine: Machine) -> str:
    name, why = proposed.pair.name, choosing.why(proposed, machine)
    action = f"it is here, open it with: specchat {name}" if proposed.ready else f"fetch it with: specchat pull {name}"
    return f"proposed for this machine: {name}{f', {why}' if why else ''}; {action}"


def _table(of: Sequence[Choice], proposed: Choice | None) -> Iterator[Text]:
    """Two lines a pair, so that they stay whole on a narrow terminal."""
    heading, *lines = columns(map(choosing.figures, of), choosing.HEADINGS, right={1, 2, 3})
    yield Text(heading, style="bold")
    for choice, line in zip(of, lines, strict=True):
        licence = f" ({choice.pair.licence})" if choice.pair.licence_notice else ""
        yield Text(line, style="bold" if choice is proposed else "")
        yield from (Text(part, style="dim") for part in wrapped([f"  {choice.pair.description}{licence}"], indent=2))
