"""How many lines a text takes on the screen.

Contract: as Textual 8.2 wraps a `Content`, but for tabs, each of which counts as no more than one column.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from rich._wrap import divide_line  # what Content wraps with; its own `wrap` says where the words went, not the blanks


def wrapped(text: str, width: int) -> Iterator[str]:
    """The lines that `text` takes in `width` columns, with the blanks and newlines that end them: together, `text`."""
    for line in text.splitlines(keepends=True):
        cuts = divide_line(line.rstrip("\n"), width)
        yield from (line[start:end] for start, end in pairwise((0, *cuts, len(line))))
