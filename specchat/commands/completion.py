"""`specchat completion SHELL`: the script that makes a shell complete commands, options and pair names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    bash   add to ~/.bashrc:  eval "$(specchat completion bash)"
    zsh    add to ~/.zshrc:   eval "$(specchat completion zsh)"
    fish   specchat completion fish > ~/.config/fish/completions/specchat.fish
    """
    from specchat.cli import main

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(main, {}, "specchat", "_SPECCHAT_COMPLETE").source())
