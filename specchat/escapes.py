"""A terminal's escape sequences in text from models, files and people.

Contract: a sequence goes as a whole: without its first character the rest of it would stay, as letters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

# CSI, OSC (ended by BEL or ST, or by the text's end), and those of two characters. Not the one-character forms (\x9b):
# in text they are mostly a letter of another encoding, and what follows them is text.
_SEQUENCE: Final = re.compile("\x1b\\[[0-?]*[ -/]*[@-~]|\x1b\\][^\x07\x1b]*(?:\x07|\x1b\\\\)?|\x1b[@-Z\\\\^_]")


def without_sequences(text: str) -> str:
    """`text` without escape sequences; other control characters stay."""
    return _SEQUENCE.sub("", text)


def sequences(text: str) -> Iterator[tuple[int, int]]:
    """Where they begin and end."""
    return (match.span() for match in _SEQUENCE.finditer(text))
