"""Completion of slash commands.

Contract: `candidates` is a pure function of the text before the cursor.
"""

from __future__ import annotations

from dataclasses import dataclass

from specchat.tui.actions import COMMANDS, find_command


@dataclass(frozen=True, slots=True)
class Candidate:
    """One offer: what the list shows, and the text the box holds once it is taken."""

    label: str
    help: str
    text: str


def candidates(text: str) -> tuple[Candidate, ...]:
    """What the command in `text`, as far as it is typed, could become; () where it is none or complete."""
    if not text.startswith("/") or "\n" in text:
        return ()
    word, space, argument = text[1:].partition(" ")
    if not space:
        return tuple(
            Candidate(command.usage, command.help, f"/{command.name}" + (" " if command.argument else ""))
            for command in COMMANDS
            if command.name.startswith(word)
        )
    command = find_command(word)
    if command is None:
        return ()
    return tuple(
        Candidate(choice, "", f"/{word} {choice}")
        for choice in command.choices
        if choice.startswith(argument) and choice != argument
    )
