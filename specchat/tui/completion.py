"""Completion of slash commands, and of the paths of files to attach.

Contract: `candidates` depends on the text before the cursor alone, and for `@path` on what is in that folder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from specchat.tui.actions import COMMANDS, find_command
from specchat.tui.attach import paths


@dataclass(frozen=True, slots=True)
class Candidate:
    """One offer: what the list shows, and the text the box holds once it is taken."""

    label: str
    help: str
    text: str


def candidates(text: str) -> tuple[Candidate, ...]:
    """What the command in `text`, as far as it is typed, could become; () where it is none or complete."""
    if (mention := re.search(r"(?:^|\s)@(\S+)$", text)) is not None:
        before = text[: mention.start(1)]
        offers = (
            Candidate(path, "", before + path + ("" if path.endswith("/") else " ")) for path in paths(mention[1])
        )
        return tuple(offer for offer in offers if offer.text.rstrip() != text)
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
