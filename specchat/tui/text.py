"""Text from models and people made safe for a terminal.

Contract: what `clean` returns holds no control character but newline and tab, so it can neither move the cursor nor
end a Markdown line where Python and the Markdown parser disagree. It is never to be read as markup: widgets get it
as `Content`, or with `markup=False`.
"""

from __future__ import annotations

import re
from typing import Final

from specchat.errors import SpecchatError
from specchat.escapes import unfinished, without_sequences

# Python's splitlines() ends a line at each of these, the Markdown parser only at \n: Textual's streaming append,
# which counts lines one way and parses them the other, would repeat or lose text.
_SEPARATORS: Final = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
# C0 but \t and \n, DEL, C1 (a bare \x9b is a control sequence introducer in some terminals), lone surrogates.
_CONTROLS: Final = re.compile("[\x00-\x08\x0e-\x1b\x1f\x7f-\x9f\ud800-\udfff]")


def clean(text: str) -> str:
    """`text` with line separators as newlines and without escape sequences or control characters."""
    return _harmless(without_sequences(text))


def _harmless(text: str) -> str:
    return _CONTROLS.sub("", _SEPARATORS.sub("\n", text))


class Cleaner:
    """`clean` for a text that comes in parts.

    What `add` has returned is together `clean` of the whole, but for what the last part ends with: the beginning of an
    escape sequence, or a carriage return.
    """

    def __init__(self) -> None:
        self._held, self._return = "", ""

    def add(self, text: str) -> str:
        """More of it; answers with what can be shown."""
        text = self._held + text
        end = unfinished(text)
        self._held, text = text[end:], self._return + without_sequences(text[:end])
        self._return = "\r" * text.endswith("\r")  # a newline may follow, which is the same one
        return _harmless(text.removesuffix("\r"))


def one_line(text: str, limit: int = 200) -> str:
    """`text` cleaned, its white space folded, and cut at `limit` characters with an ellipsis."""
    folded = " ".join(clean(text).split())
    return folded if len(folded) <= limit else folded[: limit - 1].rstrip() + "…"


def first_clauses(text: str, width: int) -> str:
    """As many whole clauses of a sentence as fit `width`, so that no figure is cut; "" if the first does not."""
    text = one_line(text, len(text) + 1)
    if len(text) <= width:
        return text
    ends = [match.start() for match in re.finditer("[;:,] ", text) if match.start() <= width]
    return text[: ends[-1]] if ends else ""


def as_sentence(said: Exception | str) -> str:
    """What an error or a clause says, as it is shown; an error that is none of ours names its kind.

    A capital at the beginning, unless a file's or a pair's name stands there, and one mark at the end that ends it.
    """
    text = str(said).rstrip()
    if isinstance(said, Exception) and not isinstance(said, SpecchatError):
        text = f"Something went wrong inside specchat: {type(said).__name__}: {text}".rstrip(": ")
    elif text.split(" ", 1)[0].isalpha():
        text = text[:1].upper() + text[1:]
    return text if not text or text.endswith((".", "!", "?", "…")) else f"{text}."
