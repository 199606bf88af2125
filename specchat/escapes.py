"""A terminal's escape sequences in text from models, files and people.

Contract: a sequence goes as a whole: without its first character the rest of it would stay, as letters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

# CSI, OSC (ended by BEL or ST) and a choice of characters, all of them also where another sequence or the text's end
# cuts them; then those of two characters. Of an OSC that goes over the end of its line only the beginning is one of
# those: what follows may be all the text there is. Not the one-character forms (\x9b): in text they are mostly a letter
# of another encoding, and what follows them is text.
_STRING: Final = "[^\x00-\x08\n-\x1f]*"
_CUT: Final = "(?=\x1b)|\\Z"
_SEQUENCE: Final = re.compile(
    f"\x1b\\[[0-?]*[ -/]*(?:[@-~]|{_CUT})|\x1b\\]{_STRING}(?:\x07|\x1b\\\\|{_CUT})|\x1b[()](?:[0-2AB]|{_CUT})"
    "|\x1b[78=>@-Z\\\\-_]"
)
_UNFINISHED: Final = re.compile(f"\x1b(?:\\[[0-?]*[ -/]*|\\]{_STRING}\x1b?|[()])?\\Z")


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
