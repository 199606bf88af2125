"""`specchat [PAIR|FILE.gguf]`: the chat. The work is done by `specchat.session` and `specchat.tui`."""

from __future__ import annotations

import difflib
import os
import sys
from typing import Any

import click

from specchat.commands.options import Options, PairOrFile, is_path, shared_options
from specchat.errors import SpecchatError

NO_TERMINAL = 2


@click.command("chat")
@click.argument("names", nargs=-1, metavar="[PAIR | FILE.gguf]", type=PairOrFile())
@click.option("-C", "--continue", "latest", is_flag=True, help="Go on with the conversation used last.")
@click.option(
    "--resume",
    metavar="[ID]",
    is_flag=False,
    flag_value="",
    help="Go on with that conversation (the beginning of its id is enough); without an ID, choose one.",
)
@click.option("--no-mouse", is_flag=True, help="Leave the mouse to the terminal, for its own selection of text.")
@shared_options
@click.pass_context
def command(
    ctx: click.Context, /, names: tuple[str, ...], latest: bool, resume: str | None, no_mouse: bool, **given: Any
) -> None:
    """Open the chat with a pair, or with a GGUF file as the target.

    Without an argument: the pair opened last, or the demo pair if it is all there is.
    """
    if latest and resume is not None:
        raise click.UsageError("--continue and --resume both say which conversation: give one of them.")
    if len(names) > 1:
        raise click.UsageError(_not_a_name(names))
    for name in names:
        _check(name)
    obstacle = no_terminal()
    if obstacle:
        click.echo(f'specchat: {obstacle}; `specchat ask "..."` answers without one', err=True)
        ctx.exit(NO_TERMINAL)
    wanted = "last" if latest else resume
    ctx.exit(_chat(Options(**given), names[0] if names else None, wanted, no_mouse))


def _chat(options: Options, name: str | None, wanted: str | None, no_mouse: bool) -> int:
    """`wanted`: the beginning of a conversation's id, "last", "" to choose one, None for a new one."""
    from functools import partial

    from specchat import settings
    from specchat.commands import opening, resuming
    from specchat.session import Session
    from specchat.tui import app, keymap

    chosen = settings.load()
    keys = keymap.of(chosen)
    store, warning = app.open_store()
    try:
        resume = resuming.conversation(store, wanted) if wanted else None
        if resume is not None and not options.models(name):
            name = resuming.pair_of(resume)
        session = Session(opening.offering(opening.launch(options, name)))
    except BaseException:
        store.close()
        raise
    status = app.run(
        session,
        theme=chosen.theme,
        keymap=keys,
        mouse=chosen.mouse and not no_mouse,
        store=store,
        resume=resume,
        choose=wanted == "",
        opener=partial(opening.instead, options),
        warning=warning,
    )
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
    from specchat import locations
    from specchat.cli import COMMANDS
    from specchat.pairs import catalog

    if is_path(name):
        if not locations.exists(locations.expanded(name)):
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
