"""A terminal's escape sequences in text from models, files and people.

Contract: a sequence goes as a whole: without its first character the rest of it would stay, as letters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

# CSI, OSC (ended by BEL or ST), both also where the text's end cuts them, and those of two characters. Not the
# one-character forms (\x9b): in text they are mostly a letter of another encoding, and what follows them is text.
_SEQUENCE: Final = re.compile("\x1b\\[[0-?]*[ -/]*(?:[@-~]|\\Z)|\x1b\\][^\x07\x1b]*(?:\x07|\x1b\\\\)?|\x1b[@-Z\\\\^_]")
_UNFINISHED: Final = re.compile("\x1b(?:\\[[0-?]*[ -/]*|\\][^\x07\x1b]*\x1b?)?\\Z")


def without_sequences(text: str) -> str:
    """`text` without escape sequences; other control characters stay."""
    return _SEQUENCE.sub("", text)


def unfinished(text: str) -> int:
    """Where a sequence begins that may go on behind the end of `text`; its length where none does."""
    match = _UNFINISHED.search(text)
    return len(text) if match is None else match.start()


def sequences(text: str) -> Iterator[tuple[int, int]]:
    """Where they begin and end."""
    return (match.span() for match in _SEQUENCE.finditer(text))
