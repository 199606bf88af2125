"""`specchat settings`: every setting with what it does, and the user's values; or the file in an editor, checked."""

from __future__ import annotations

import click

from specchat import locations, settings
from specchat.errors import SpecchatError


@click.command()
@click.option("--edit", is_flag=True, help="Open the file in $VISUAL or $EDITOR, made with every setting described.")
def command(edit: bool) -> None:
    """Print every setting with its description and your values, as the settings file has them.

    The file is the one that `specchat paths settings` names.
    """
    if edit:
        _edit()
    values = settings.read()
    if settings.parse(values, locations.settings_file()).keys:
        from specchat.tui import keymap  # loads Textual

        keymap.of(settings.load())
    if edit:
        click.echo(f"{locations.tilde(locations.settings_file())} is valid; it holds from the next start on")
    else:
        click.echo(settings.template(values))


def _edit() -> None:
    path = locations.settings_file()
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(settings.template(), "utf-8")
        click.edit(filename=str(path))
    except OSError as error:
        raise SpecchatError(f"cannot write {locations.tilde(path)}: {error.strerror}") from error
    except click.ClickException as error:
        raise SpecchatError(error.format_message()) from error
