"""Figures side by side in one line of a given width: the least important ones give way, none is ever cut.

Contract: `fit` is a pure function of its arguments; what it returns is at most `width` cells wide (unless the most
important segment alone is wider, and then it is that one whole).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from textual.content import Content

SEPARATOR: Final = Content.styled(" · ", "$foreground 30%")


@dataclass(frozen=True, slots=True)
class Segment:
    """One figure. `rank` 0 is the last to go; `short` is tried before anything is left out."""

    content: Content
    rank: int
    short: Content | None = None


def fit(segments: Sequence[Segment], width: int, separator: Content = SEPARATOR) -> Content:
    """The segments that fit into `width` cells, in their order, joined by `separator`."""
    chosen = {index: segment.content for index, segment in enumerate(segments)}
    by_rank = sorted(chosen, key=lambda index: -segments[index].rank)
    for index in by_rank:
        if _width(chosen, separator) <= width:
            break
        if (short := segments[index].short) is not None:
            chosen[index] = short
    for index in by_rank[:-1]:
        if _width(chosen, separator) <= width:
            break
        del chosen[index]
    # Not separator.join: Textual 8.2.8 counts the separator once too often once its width is known.
    parts = [part for index in sorted(chosen) for part in (separator, chosen[index])]
    return Content.assemble(*parts[1:])


def _width(chosen: dict[int, Content], separator: Content) -> int:
    return sum(content.cell_length for content in chosen.values()) + separator.cell_length * (len(chosen) - 1)
