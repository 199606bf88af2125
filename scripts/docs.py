"""The parts of the documentation that the program knows better: help texts, keys, commands, settings, pairs.

Contract: what stands between `<!-- NAME: ... -->` and `<!-- /NAME -->` in README.md is made by the function of that
name in `PARTS`; docs/commands.md is made as a whole. `outdated` names the files that are not as they would be made.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import click

from specchat import settings
from specchat.cli import COMMANDS, main
from specchat.pairs import catalog, choosing
from specchat.tui import actions
from specchat.units import format_bytes

ROOT: Final = Path(__file__).parents[1]
README: Final = ROOT / "README.md"
REFERENCE: Final = ROOT / "docs" / "commands.md"
WIDTH: Final = 80  # columns of help texts
_PART: Final = re.compile(r"(<!-- ([a-z-]+):[^>]*-->\n).*?(<!-- /\2 -->)", re.DOTALL)


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def help_text(name: str = "") -> str:
    """What `specchat NAME --help` prints in a terminal of `WIDTH` columns."""
    with click.Context(main, info_name="specchat", terminal_width=WIDTH, **main.context_settings) as context:
        if not name:
            return main.get_help(context)
        command = main.get_command(context, name)
        assert command is not None
        with click.Context(command, context, name, terminal_width=WIDTH, **main.context_settings) as inner:
            return command.get_help(inner)


def overview() -> str:
    """The program's own help."""
    return f"```\n{help_text()}\n```\n"


def pairs() -> str:
    """Every pair of the shipped catalogue, as it stands there."""
    known = catalog.load(user_file=ROOT / "no-such-file.toml")
    rows = [
        (
            f"`{pair.name}`",
            format_bytes(known.download_bytes(pair) or 0),
            f"{pair.memory_gib:.1f} GiB",
            choosing.MADE_FOR[pair.suits],
            pair.licence,
            pair.description,
        )
        for pair in known.pairs.values()
    ]
    return table(("Pair", "Download", "Memory", "Made for", "Licence", ""), rows)


def setting_rows() -> str:
    """Every setting of the settings file."""
    fields = dataclasses.fields(settings.Settings)
    rows = [(f"`{f.name}`", f"`{f.metadata['example']}`", f.metadata["doc"]) for f in fields]
    return table(("Setting", "For example", "What it does"), rows)


def keys() -> str:
    """Every key, by the place where it is listened to."""
    lines = []
    for place in actions.Place:
        here = [action for action in actions.ACTIONS if action.place is place]
        rows = [(", ".join(map(actions.key_name, action.keys)), f"`{action.name}`", action.help) for action in here]
        lines.append(f"{place.value.capitalize()}:\n\n{table(('Key', 'Action', 'What it does'), rows)}")
    return "\n".join(lines)


def slash_commands() -> str:
    """Every slash command."""
    return table(("Command", "What it does"), [(f"`{c.usage}`", c.help) for c in actions.COMMANDS])


PARTS: Final[Mapping[str, Callable[[], str]]] = {
    "help": overview,
    "pairs": pairs,
    "settings": setting_rows,
    "keys": keys,
    "slash-commands": slash_commands,
}


def readme(text: str) -> str:
    """README.md with its generated parts made anew. Raises KeyError for a part that is none."""
    return _PART.sub(lambda found: f"{found[1]}\n{PARTS[found[2]]()}\n{found[3]}", text)


def reference() -> str:
    """Every command's help."""
    parts = (f"## specchat {name}\n\n```\n{help_text(name)}\n```\n" for name in COMMANDS)
    return "\n".join(["# Every command\n", "Made by `scripts/docs` from the program's own help texts.\n", *parts])


def made() -> Iterator[tuple[Path, str]]:
    """Every file with what it should hold."""
    yield README, readme(README.read_text("utf-8"))
    yield REFERENCE, reference()


def outdated() -> list[Path]:
    """The files that `scripts/docs` would change."""
    return [path for path, text in made() if not path.exists() or path.read_text("utf-8") != text]


def run() -> int:
    """`scripts/docs [--check]`."""
    parser = argparse.ArgumentParser(prog="scripts/docs", description="Write the generated parts of the documentation.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if something is out of date")
    check = parser.parse_args().check
    os.environ.pop("SPECCHAT_HOME", None)
    stale = outdated()
    for path in stale:
        print(f"{path.relative_to(ROOT)} {'is out of date: run scripts/docs' if check else 'written'}")
    if not check:
        for path, text in made():
            path.write_text(text, "utf-8")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(run())
