"""`specchat paths`: where everything lies."""

from __future__ import annotations

import json

import click

from specchat import locations
from specchat.commands import console
from specchat.pairs import catalog


@click.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(name: str | None, as_json: bool) -> None:
    """Print every location specchat uses, or only the one called NAME.

    SPECCHAT_HOME puts everything under one folder; the XDG variables are honoured.
    """
    places = {**locations.all_locations(), "catalogue": catalog.shipped_file()}
    if name is not None:
        if name not in places:
            raise click.BadParameter(f"{name} is none of {', '.join(places)}.", param_hint="NAME")
        click.echo(places[name])
    elif as_json:
        click.echo(json.dumps({key: str(path) for key, path in places.items()}, indent=2))
    else:
        rows = [(key, str(path), "" if path.exists() else "(not there yet)") for key, path in places.items()]
        click.echo("\n".join(console.columns(rows)))
