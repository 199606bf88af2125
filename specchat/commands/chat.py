"""`specchat [PAIR|FILE.gguf]`: the chat. The work is done by `specchat.session` and `specchat.tui`."""

from __future__ import annotations

import difflib
import os
import sys
from pathlib import Path
from typing import Any

import click

from specchat.commands.options import Options, PairOrFile, is_path, shared_options
from specchat.errors import SpecchatError

NO_TERMINAL = 2


@click.command("chat")
@click.argument("names", nargs=-1, metavar="[PAIR | FILE.gguf]", type=PairOrFile())
@shared_options
@click.pass_context
def command(ctx: click.Context, /, names: tuple[str, ...], **given: Any) -> None:
    """Open the chat with a pair, or with a GGUF file as the target.

    Without an argument: the pair opened last, or the demo pair if it is all there is.
    """
    if len(names) > 1:
        raise click.UsageError(_not_a_name(names))
    for name in names:
        _check(name)
    obstacle = no_terminal()
    if obstacle:
        click.echo(f'specchat: {obstacle}; `specchat ask "..."` answers without one', err=True)
        ctx.exit(NO_TERMINAL)
    ctx.exit(_chat(Options(**given), names[0] if names else None))


def _chat(options: Options, name: str | None) -> int:
    from specchat import settings
    from specchat.commands import opening
    from specchat.session import Session
    from specchat.tui import app

    session, chosen = Session(opening.launch(options, name)), settings.load()
    status = app.run(session, theme=chosen.theme, mouse=chosen.mouse)
    if status == 0 and session.failure is not None:
        raise session.failure  # the screen that said it is gone
    return status


def no_terminal() -> str:
    """Why no screen can be shown here; empty if one can."""
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        return "the chat needs a terminal on standard input and output"
    if os.environ.get("TERM") == "dumb":
        return "the chat needs a terminal that can place text (TERM is dumb)"
    return ""


def _check(name: str) -> None:
    """Say what is wrong with the one word that was typed before saying anything else."""
    from specchat.cli import COMMANDS
    from specchat.pairs import catalog

    if is_path(name):
        if not Path(name).expanduser().exists():
            raise SpecchatError(f"there is no file {name}")
        return
    known = catalog.load()
    if name.lower() in map(str.lower, known.pairs):
        return
    if " " in name:
        raise SpecchatError(f'there is no pair called {name}; to ask something: specchat ask "{name}"')
    if near := difflib.get_close_matches(name, COMMANDS, n=1):
        raise SpecchatError(f"there is no command or pair called {name}; did you mean {near[0]}?")
    known.pair(name)  # raises, with what it might have been


def _not_a_name(words: tuple[str, ...]) -> str:
    """Several words and no command first."""
    from specchat.cli import COMMANDS

    if command := next((word for word in words if word in COMMANDS), None):
        return f"The command comes first: specchat {command} ..."
    if near := difflib.get_close_matches(words[0], COMMANDS, n=1):
        return f"There is no command called {words[0]}. Did you mean {near[0]}?"
    return f'The chat takes one pair or file. To ask something: specchat ask "{" ".join(words)}"'
