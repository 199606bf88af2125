"""The command line: a thin face over the rooms below.

Every command lives in a module of its own under `specchat.commands` and is imported only when it is called,
so that `specchat --help` loads neither Textual nor llama.cpp's native library.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Final

import click

from specchat import __version__
from specchat.errors import SpecchatError

# name -> (module under specchat.commands that holds a click.Command called `command`, one line of help).
COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "pull": ("pull", "Fetch pairs, verified and resumable; without a name, show those there are."),
    "list": ("list", "Show the pairs and model files that are here, and verify them."),
    "remove": ("remove", "Delete a pair's files and say what was freed."),
    "paths": ("paths", "Print where everything lies."),
}


class LazyGroup(click.Group):
    """A group that knows its commands' names and one-line helps without importing their modules.

    A SpecchatError of a command is its sentence on standard error and exit status 1.
    """

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except SpecchatError as error:
            click.echo(f"specchat: {error}", err=True)
            ctx.exit(1)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"specchat.commands.{COMMANDS[cmd_name][0]}")
        command: click.Command = module.command
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="specchat")
def main() -> None:
    """Chat with a local model, sped up losslessly by speculative decoding."""
