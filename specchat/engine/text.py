"""Bytes of tokens -> text a person reads: whole characters, stop strings, reasoning apart from the answer.

Contract: nothing here depends on how the bytes were cut into tokens or the tokens into rounds, except that text is
given out as early as it is certain. Every stretch of text keeps the origin of the token that completed it.
"""

from __future__ import annotations

import codecs
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, TypeAlias

from specchat.engine.rounds import Origin

OPEN: Final = "<think>"
CLOSE: Final = "</think>"


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of text of one origin; never splits a character. Concatenated pieces are the reply."""

    text: str
    origin: Origin
    reasoning: bool = False


# (text, where it came from), in order; neighbours of one origin are joined.
Stretches: TypeAlias = list[tuple[str, Origin]]


class ReplyText:
    """One reply's text. Feed it tokens; it gives pieces, and knows when a stop string came."""

    def __init__(self, stop: Sequence[str] = (), *, in_reasoning: bool = False, in_answer: bool = False) -> None:
        """`in_reasoning`: the prompt ended inside a reasoning block; `in_answer`: in the middle of an answer."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = StopStrings(stop)
        self._reasoning = Reasoning(_Part.REASONING if in_reasoning else _Part.ANSWER if in_answer else _Part.START)
        self._ends: list[int] = []  # after each token: characters of text that must be kept if the token is
        self._length = 0
        self._origin = Origin.PLAIN

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found: everything from it on is dropped, and nothing more is taken."""
        return self._stops.found is not None

    @property
    def n_tokens(self) -> int:
        """How many of the tokens fed lie wholly before the stop string (all of them, if there was none)."""
        found = self._stops.found
        return len(self._ends) if found is None else bisect_right(self._ends, found)

    @property
    def thinking(self) -> bool:
        """Whether the text is inside a reasoning block now, and not in the middle of a character."""
        return self._reasoning.is_open and not self._decoder.getstate()[0] and not self.stopped

    def feed(self, tokens: Iterable[tuple[bytes, Origin]]) -> list[Piece]:
        """The pieces that became certain with these tokens."""
        ready: Stretches = []
        for data, origin in tokens:
            text = self._decoder.decode(data)
            self._length += len(text)
            self._origin = origin
            # A token that leaves a character unfinished belongs to that character.
            unfinished = bool(self._decoder.getstate()[0])
            self._ends.append(self._length + unfinished)
            ready += self._stops.feed(text, origin)
        return self._pieces(ready, final=False)

    def finish(self) -> list[Piece]:
        """What was held back: the start of a stop string that did not come; U+FFFD for an unfinished character."""
        rest = self._decoder.decode(b"", final=True)
        return self._pieces([*self._stops.feed(rest, self._origin), *self._stops.finish()], final=True)

    def _pieces(self, ready: Stretches, *, final: bool) -> list[Piece]:
        pieces = [piece for text, origin in ready for piece in self._reasoning.feed(text, origin)]
        if final:
            pieces += self._reasoning.finish()
        return list(_joined(pieces))


class StopStrings:
    """Passes text on up to the stop string that is complete first (of those complete at once: the earliest begun)."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = [string for string in strings if string]
        self._held: Stretches = []
        self._passed = 0  # characters given out
        self.found: int | None = None  # characters of text before the stop string

    def feed(self, text: str, origin: Origin) -> Stretches:
        """What can no longer become part of a stop string."""
        if self.found is not None or not text:
            return []
        if not self._strings:
            self._passed += len(text)
            return [(text, origin)]
        self._held.append((text, origin))
        held = "".join(text for text, _ in self._held)
        matches = [(at + len(string), at) for string in self._strings if (at := held.find(string)) >= 0]
        if matches:
            cut = min(matches)[1]
            self.found = self._passed + cut
            ready, self._held = self._take(cut), []
            return ready
        return self._take(len(held) - max((_overlap(held, string) for string in self._strings), default=0))

    def finish(self) -> Stretches:
        """The rest, when no more text comes."""
        return self._take(sum(len(text) for text, _ in self._held))

    def _take(self, n: int) -> Stretches:
        """Give out the first `n` characters of what is held."""
        self._passed += n
        taken, self._held = _split(self._held, n)
        return taken


class _Part(Enum):
    START = auto()  # nothing but white space so far
    REASONING = auto()
    AFTER = auto()  # line breaks between the reasoning and the answer
    ANSWER = auto()


class Reasoning:
    """Tells a reasoning block at the start of a reply from the answer; drops its tags and the line breaks at them.

    Only the start counts: an answer may speak of `<think>` as it likes.
    """

    def __init__(self, part: _Part = _Part.START) -> None:
        self._part = part
        self._fresh = part is _Part.REASONING  # no reasoning text yet: leading white space is the template's
        self._held: Stretches = []

    @property
    def is_open(self) -> bool:
        """Whether the block has begun and not ended."""
        return self._part is _Part.REASONING

    def feed(self, text: str, origin: Origin) -> Iterator[Piece]:
        """Pieces that are certain now."""
        if not text:
            return
        if self._part is _Part.ANSWER:  # all that comes after it is, so nothing is held
            yield Piece(text, origin)
            return
        self._held.append((text, origin))
        while self._held and (step := self._step("".join(text for text, _ in self._held))) is not None:
            drop, take, reasoning, then = step
            _, self._held = _split(self._held, drop)
            taken, self._held = _split(self._held, take)
            self._part = then
            yield from (Piece(text, origin, reasoning) for text, origin in taken)

    def finish(self) -> Iterator[Piece]:
        """The rest, when no more text comes."""
        held, self._held = self._held, []
        whole = "".join(text for text, _ in held)
        reasoning = self._part is _Part.REASONING
        if reasoning:
            held, _ = _split(held, len(whole.rstrip()))
        elif self._part is _Part.AFTER:
            held = []
        yield from (Piece(text, origin, reasoning) for text, origin in held)

    def _step(self, held: str) -> tuple[int, int, bool, _Part] | None:
        """(characters to drop, then to give out, as reasoning?, the part that follows), or None: wait for more."""
        match self._part:
            case _Part.START:
                return self._at_start(held)
            case _Part.REASONING:
                return self._in_reasoning(held)
            case _Part.AFTER:
                blank = len(held) - len(held.lstrip("\n"))  # not an answer's own indentation
                return (blank, 0, False, _Part.ANSWER) if blank < len(held) else None
            case _Part.ANSWER:
                return 0, len(held), False, _Part.ANSWER

    def _at_start(self, held: str) -> tuple[int, int, bool, _Part] | None:
        start = held.lstrip()
        if start.startswith(OPEN):
            self._fresh = True
            return len(held) - len(start) + len(OPEN), 0, True, _Part.REASONING
        return None if OPEN.startswith(start) else (0, len(held), False, _Part.ANSWER)

    def _in_reasoning(self, held: str) -> tuple[int, int, bool, _Part] | None:
        at = held.find(CLOSE)
        certain = held[:at] if at >= 0 else held[: len(held) - _overlap(held, CLOSE)]
        text = certain.rstrip()  # white space before the closing tag is dropped, so it waits
        blank = len(text) - len(text.lstrip()) if self._fresh else 0
        if at >= 0:
            if len(text) > blank:
                self._fresh = False
                return blank, len(text) - blank, True, _Part.REASONING
            return at + len(CLOSE), 0, True, _Part.AFTER
        if len(text) == blank:
            return None
        self._fresh = False
        return blank, len(text) - blank, True, _Part.REASONING


def _overlap(text: str, string: str) -> int:
    """How many of the last characters of `text` are the beginning of `string`, which may follow."""
    for n in range(min(len(text), len(string) - 1), 0, -1):
        if text.endswith(string[:n]):
            return n
    return 0


def _split(stretches: Stretches, n: int) -> tuple[Stretches, Stretches]:
    """The first `n` characters, and the rest."""
    before: Stretches = []
    for i, (text, origin) in enumerate(stretches):
        if n < len(text):
            if n:
                before.append((text[:n], origin))
            return before, [(text[n:], origin), *stretches[i + 1 :]]
        before.append((text, origin))
        n -= len(text)
    return before, []


def _joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Neighbours of one origin in one piece."""
    current: Piece | None = None
    for piece in pieces:
        if current and (current.origin, current.reasoning) == (piece.origin, piece.reasoning):
            current = Piece(current.text + piece.text, piece.origin, piece.reasoning)
            continue
        if current:
            yield current
        current = piece
    if current:
        yield current
