"""A reply coloured by where its tokens came from.

Contract: pure; the text of `coloured` is the text of the pieces, cleaned.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from textual.content import Content

from specchat.engine.rounds import Origin
from specchat.engine.text import Piece
from specchat.tui.text import Cleaner

# Underlined and reversed too, so that it can be read without colours.
STYLES: Final = {
    Origin.ACCEPTED: "$text-success",
    Origin.CORRECTED: "$text-error underline",
    Origin.BONUS: "$text-accent underline",
    Origin.PLAIN: "$foreground",
}
_NAMES: Final = {
    Origin.ACCEPTED: "proposed and accepted",
    Origin.CORRECTED: "corrected",
    Origin.BONUS: "one more, all accepted",
    Origin.PLAIN: "plain",
}


def coloured(pieces: Iterable[Piece]) -> Content:
    """The pieces' text in the colours of their origins, reasoning left out."""
    cleaner = Cleaner()
    return Content.assemble(*((cleaner.add(p.text), STYLES[p.origin]) for p in pieces if not p.reasoning))


def unknown(text: str) -> Content:
    """Text whose tokens' origins are not known any more."""
    return Content.styled(text, "$foreground 60%")


def legend() -> Content:
    """The colours with their names."""
    return Content.assemble(
        *(part for origin in Origin for part in ((_NAMES[origin], STYLES[origin]), ("   ", "")))
    ).rstrip()
