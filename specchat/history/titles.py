"""Titles made from the first question: pure functions."""

from __future__ import annotations

import unicodedata
from typing import Final

from specchat.escapes import without_sequences
from specchat.history.values import UNTITLED

TITLE_LENGTH: Final = 50
# Joiners that scripts and emoji need; every other format character (bidi overrides, ...) can disguise a title.
_JOINERS: Final = "\u200c\u200d"


def title_of(text: str) -> str:
    """The first line of `text` that says something, cut at a word to at most 50 characters; else "Untitled".

    Holds no control or format character, no line break and no run of blanks, whatever `text` holds.
    """
    for line in without_sequences(text).splitlines():
        words = _visible(line)
        if words and not words.startswith(("```", "~~~")):
            return _shortened(words)
    return UNTITLED


def clean_title(text: str) -> str:
    """A title as a person typed it, on one line and without control characters; may be empty."""
    return _visible(without_sequences(text))


def _visible(line: str) -> str:
    kept = (
        " " if unicodedata.category(c) == "Cc" else c
        for c in line
        if c in _JOINERS or unicodedata.category(c) not in ("Cf", "Cs", "Co", "Cn")
    )
    return " ".join("".join(kept).split()).strip(_JOINERS)


def _shortened(line: str) -> str:
    if len(line) <= TITLE_LENGTH:
        return line
    room = TITLE_LENGTH - 1  # for the ellipsis
    cut = line.rfind(" ", 0, room + 1)
    # A first word longer than half the title (a path, a language without blanks) is cut inside.
    return line[: cut if cut > room // 2 else room].rstrip(" ,.;:-" + _JOINERS) + "…"
