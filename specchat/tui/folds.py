"""Long pastes in the box as one line each.

Contract: pure values but for the texts kept. `fold` and `expand` are each other's inverse, and so are `marked` and
`restore`, for a text that is kept on disk. A stand-in is known by its number, so that one typed by hand, or of another
window, is text like any other.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Final

from specchat.tui.text import clean
from specchat.tui.wrapping import wrapped

_LINES: Final = 10  # of a paste that still goes into the box as it is: more than the box shows at once
_STAND_IN: Final = re.compile(r"\[pasted (\d+): [\d,]+ lines?, [\d,]+ characters\]")
_MARKED: Final = re.compile("\x02([^\x03]*)\x03")  # start and end of text, which no clean text holds


def is_long(text: str, width: int) -> bool:
    """Whether a paste is worth folding in a box of `width` columns."""
    return next(islice(wrapped(text, width), _LINES, None), None) is not None


class Folds:
    """The texts that stand-ins stand for."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}

    def fold(self, text: str) -> str:
        """The stand-in for `text`; the same one if it was folded before."""
        number = next((n for n, known in self._texts.items() if known == text), len(self._texts) + 1)
        self._texts[number] = text
        lines = len(text.splitlines())
        return f"[pasted {number}: {lines:,} {'line' if lines == 1 else 'lines'}, {len(text):,} characters]"

    def expand(self, text: str) -> str:
        """`text` with what its stand-ins stand for."""
        return self._replaced(text, "{}")

    def _replaced(self, text: str, form: str) -> str:
        def known(match: re.Match[str]) -> str:
            folded = self._texts.get(int(match[1]))
            return match[0] if folded is None else form.format(folded)

        return _STAND_IN.sub(known, text)

    def refold(self, text: str) -> str:
        """`text` with the stand-ins of what was folded before, and lost its white space at the ends by being sent."""
        for known in sorted(self._texts.values(), key=len, reverse=True):
            for form in filter(str.strip, (known, known.strip())):
                if form in text:
                    text = text.replace(form, self.fold(form))
        return text

    def marked(self, text: str) -> str:
        """`text` with what its stand-ins stand for, between marks."""
        return self._replaced(text, "\x02{}\x03")

    def restore(self, text: str) -> str:
        """What `marked` was given, with stand-ins of these folds; nothing else is folded."""
        return _MARKED.sub(lambda match: self.fold(clean(match[1])), text)

    def around(self, line: str, column: int) -> tuple[int, int] | None:
        """Where the stand-in begins and ends that has `column` inside it; None at its edges too."""
        for match in _STAND_IN.finditer(line):
            if match.start() < column < match.end() and int(match[1]) in self._texts:
                return match.span()
        return None
