"""The command line: a thin face over the rooms below.

Every command lives in a module of its own under `specchat.commands` and is imported only when it is called,
so that `specchat --help` loads neither Textual nor llama.cpp's native library.

Exit status: 0; 1 a failure, with one sentence on standard error; 2 wrong usage, or no terminal for the chat; 130
after Ctrl+C; 141 when whoever read the output went away.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Final

import click
from click.shell_completion import CompletionItem

from specchat import __version__
from specchat.errors import SpecchatError

# name -> (module under specchat.commands that holds a click.Command called `command`, one line of help).
COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "chat": ("chat", "Open the chat; so does specchat without a command."),
    "ask": ("ask", "Print one reply and nothing else."),
    "pull": ("pull", "Fetch pairs of models; without a name, show those there are."),
    "list": ("list", "Show the pairs and model files that are here, and verify them."),
    "remove": ("remove", "Delete a pair's files and say what was freed."),
    "plan": ("plan", "Show where a pair's models would go in this machine's memory, and why."),
    "doctor": ("doctor", "Check this installation, or whether two models may be paired."),
    "bench": ("bench", "Measure what speculation gains on this machine."),
    "explain": ("explain", "Explain what speculation can gain with your pair on your machine."),
    "verify": ("verify", "Check that speculation changes nothing, on this machine."),
    "rpc-worker": ("rpc_worker", "Lend this machine's devices to a specchat on another one."),
    "make-draft": ("make_draft", "Make a draft for a target that has none, out of the target itself."),
    "paths": ("paths", "Print where everything lies."),
    "settings": ("settings", "Print every setting with what it does, or edit them."),
    "completion": ("completion", "Print the script that makes a shell complete specchat's command lines."),
}
# What shells report for a program that Ctrl+C, or writing to a closed pipe, has ended: 128 + the signal's number.
INTERRUPTED: Final = 130
CLOSED_PIPE: Final = 141


class LazyGroup(click.Group):
    """A group that knows its commands' names and one-line helps without importing their modules.

    Arguments that do not begin with a command are the chat's. How a command fails is the module's contract.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {*COMMANDS, *ctx.help_option_names, "--version"}
        if (args and args[0] not in own) or (not args and not ctx.resilient_parsing):
            args = ["chat", *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        _open_missing_streams()
        try:
            return super().invoke(ctx)
        except SpecchatError as error:
            click.echo(f"specchat: {error}{f' ({error.option})' if error.option else ''}", err=True)
            ctx.exit(1)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            _flush_or_drop()
            ctx.exit(CLOSED_PIPE)
        except OSError as error:  # a full disk under standard output, say
            _flush_or_drop()
            where = f"{error.filename}: " if error.filename else ""
            click.echo(f"specchat: {where}{error.strerror or error}", err=True)
            ctx.exit(1)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"specchat.commands.{COMMANDS[cmd_name][0]}")
        command: click.Command = module.command
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands, and what the chat takes: pairs, files, its options."""
        chat = self.get_command(ctx, "chat")
        assert chat is not None
        with chat.make_context("chat", [], parent=ctx, resilient_parsing=True) as chat_ctx:
            items = [*click.Command.shell_complete(self, ctx, incomplete), *chat.shell_complete(chat_ctx, incomplete)]
            names = chat.params[0].shell_complete(chat_ctx, incomplete)
        commands = [
            CompletionItem(name, help=text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)
        ]
        # Bash forgets what came before an item that stands for files: names first.
        return [*(names if not incomplete.startswith("-") else ()), *commands, *items]


def _open_missing_streams() -> None:
    """Started with a standard stream closed (`>&-`), whatever is opened next would take its place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))


def _flush_or_drop() -> None:
    """Python flushes standard output once more as it ends: what cannot be written is to go nowhere."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    options_metavar="",
    subcommand_metavar="[PAIR | FILE.gguf | COMMAND] [OPTIONS]",
    epilog="The options of the chat: specchat chat --help.",
)
@click.version_option(__version__, prog_name="specchat")
def main() -> None:
    """Chat with a local model, sped up losslessly by speculative decoding.

    Without a command: the chat, with the pair or GGUF file named, or the pair opened last.
    """
