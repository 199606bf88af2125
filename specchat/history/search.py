"""Full-text search. Any text is a valid query.

Words must all occur, each as the beginning of a word; "quoted words" occur exactly so, in that order. Letter case
and accents do not matter. What an index of words cannot find (scripts written without blanks, signs such as `->`) is
looked for as plain text instead, which reads every message.
"""

from __future__ import annotations

import re
import secrets
import sqlite3
import unicodedata
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Literal, TypeAlias

from specchat.escapes import sequences, without_sequences
from specchat.history.rows import moment
from specchat.history.values import UNTITLED, Hit

MAX_TERMS: Final = 32
EXCERPT_LENGTH: Final = 160  # characters, a quarter of them before the first match
_TERM: Final = re.compile(r'"([^"]*)"?|([^\s"]+)')
# Thai and Lao, Burmese, Khmer, kana, Chinese characters: a run of them is one word to the index.
_NO_BLANKS: Final = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
_Column: TypeAlias = Literal["content", "reasoning"]
_Span: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Term:
    text: str
    exact: bool

    @property
    def is_indexed(self) -> bool:
        """Whether the index of words can find it: two letters or digits together, or just one and nothing else."""
        return not _NO_BLANKS.search(self.text) and bool(re.search(r"[^\W_]{2}", self.text) or self.text.isalnum())

    def pattern(self, anywhere: bool) -> str:
        if anywhere or not self.is_indexed:
            return re.escape(self.text)
        return r"(?<![^\W_])" + re.escape(self.text) + (r"(?![^\W_])" if self.exact else "")


def search(
    db: sqlite3.Connection, query: str, *, reasoning: bool, conversation: str | None, limit: int
) -> tuple[Hit, ...]:
    """Edited titles first, then messages: best match first, the latest of equals first."""
    terms = _terms(query)
    if not terms:
        return ()
    columns: tuple[_Column, ...] = ("content", "reasoning") if reasoning else ("content",)
    in_messages = _by_index if all(term.is_indexed for term in terms) else _by_reading
    hits = [] if conversation else _in_titles(db, terms)
    hits += in_messages(db, terms, columns, conversation, limit)
    return tuple(hits[:limit])


def _terms(query: str) -> list[_Term]:
    plain = "".join(" " if unicodedata.category(c) in ("Cc", "Cs") else c for c in query)
    found = [_Term(" ".join((m[1] or m[2] or "").split()), m[1] is not None) for m in _TERM.finditer(plain)]
    return [term for term in found if term.text][:MAX_TERMS]


def _by_index(
    db: sqlite3.Connection,
    terms: Sequence[_Term],
    columns: Sequence[_Column],
    conversation: str | None,
    limit: int,
) -> list[Hit]:
    words = " ".join(f'"{term.text}"' + ("" if term.exact else "*") for term in terms)
    # Marks that no text can hold but by a wild accident: control characters may stand in a text.
    start, end = secrets.token_hex(8), secrets.token_hex(8)
    # Scores that differ by less than a hundredth say nothing: there the time decides. A match in the reasoning
    # counts less than one in the answer. Two stages: marking costs far more than a score. Whole texts are marked, no
    # snippets: one of those may begin inside an escape sequence, which then is none any more.
    rows = db.execute(
        """WITH best AS (
            SELECT m.id, m.role, m.updated, m.conversation, c.title,
                round(bm25(message_index, 1.0, 0.3), 2) AS score
            FROM message_index
            JOIN messages AS m ON m.id = message_index.rowid
            JOIN conversations AS c ON c.id = m.conversation
            WHERE message_index MATCH :match AND c.deleted IS NULL AND (:within IS NULL OR c.id = :within)
            ORDER BY score, m.updated DESC, m.id DESC LIMIT :limit)
        SELECT best.*,
            highlight(message_index, 0, :start, :end) AS content,
            highlight(message_index, 1, :start, :end) AS reasoning
        FROM message_index JOIN best ON best.id = message_index.rowid
        WHERE message_index MATCH :match ORDER BY score, best.updated DESC, best.id DESC""",
        {
            "start": start,
            "end": end,
            "match": f"{{{' '.join(columns)}}} : ({words})",
            "within": conversation,
            "limit": limit,
        },
    )
    return [_marked_hit(row, start, end) for row in rows]


def _marked_hit(row: sqlite3.Row, start: str, end: str) -> Hit:
    where: _Column = "content" if start in row["content"] else "reasoning"
    first, *pieces = row[where].split(start)
    texts, spans, at = [first], [], len(first)
    for piece in pieces:
        inside, _, after = piece.partition(end)
        spans.append((at, at + len(inside)))
        texts += (inside, after)
        at += len(inside) + len(after)
    return _hit(row, where, *_excerpt(*_clean("".join(texts), spans)))


def _by_reading(
    db: sqlite3.Connection,
    terms: Sequence[_Term],
    columns: Sequence[_Column],
    conversation: str | None,
    limit: int,
) -> list[Hit]:
    likes = ["%" + re.sub(r"([%_!])", r"!\1", term.text) + "%" for term in terms]
    holds = [" AND ".join([f"m.{column} LIKE ? ESCAPE '!'"] * len(terms)) for column in columns]
    rows = db.execute(
        f"""SELECT m.id, m.role, m.updated, m.conversation, c.title, m.content, m.reasoning
        FROM messages AS m JOIN conversations AS c ON c.id = m.conversation
        WHERE m.state <> 'streaming' AND c.deleted IS NULL AND (? IS NULL OR c.id = ?)
            AND (({") OR (".join(holds)}))
        ORDER BY m.updated DESC, m.id DESC LIMIT ?""",
        (conversation, conversation, *likes * len(columns), limit),
    )
    patterns = [term.pattern(anywhere=True) for term in terms]
    return [_read_hit(row, columns, patterns) for row in rows]


def _read_hit(row: sqlite3.Row, columns: Sequence[_Column], patterns: Sequence[str]) -> Hit:
    where = next((column for column in columns if _spans(row[column], patterns)), columns[0])
    text = without_sequences(row[where])
    return _hit(row, where, *_excerpt(text, _spans(text, patterns, every=False)))


def _in_titles(db: sqlite3.Connection, terms: Sequence[_Term]) -> list[Hit]:
    """Titles that people gave: one made from the first question is found as that question."""
    patterns = [_folded(term.pattern(anywhere=False)) for term in terms]
    rows = db.execute(
        """SELECT NULL AS id, NULL AS role, id AS conversation, title, updated FROM conversations
        WHERE title_origin = 'edited' AND deleted IS NULL ORDER BY updated DESC, id DESC"""
    )
    found = ((row, _spans(_folded(row["title"]), patterns)) for row in rows)
    return [_hit(row, "title", row["title"], spans) for row, spans in found if spans]


def _spans(text: str, patterns: Sequence[str], every: bool = True) -> list[_Span]:
    """Where any of the patterns stands; nowhere if `every` one is wanted and one is missing."""
    if every and not all(re.search(pattern, text, re.IGNORECASE) for pattern in patterns):
        return []
    longest_first = "|".join(sorted(patterns, key=len, reverse=True))
    return [match.span() for match in re.finditer(longest_first, text, re.IGNORECASE)]


def _folded(text: str) -> str:
    """Letters without their accents, each in its place."""
    return "".join(unicodedata.normalize("NFD", c)[0] for c in text)


def _clean(text: str, spans: Sequence[_Span]) -> tuple[str, list[_Span]]:
    """The text without escape sequences, and where the spans are in it; one that was in a sequence is none."""
    gone = list(sequences(text))
    begins, lengths = [begin for begin, _ in gone], [0, *accumulate(end - begin for begin, end in gone)]

    def moved(at: int) -> int:
        before = bisect_left(begins, at)
        inside = max(0, gone[before - 1][1] - at) if before else 0
        return at - lengths[before] + inside

    shifted = ((moved(begin), moved(end)) for begin, end in spans)
    return without_sequences(text), [(begin, end) for begin, end in shifted if begin < end]


def _excerpt(text: str, spans: Sequence[_Span]) -> tuple[str, list[_Span]]:
    """What stands around the first span, on one line, cut between words; and the spans in that."""
    first, last = spans[0] if spans else (0, 0)
    begin = max(0, first - EXCERPT_LENGTH // 4)
    if begin:
        begin = max(begin, text.find(" ", begin, first) + 1)
    end = max(begin + EXCERPT_LENGTH, last)
    if end < len(text) and (blank := text.rfind(" ", last, end)) > last:
        end = blank
    excerpt, at, found = "…" * (begin > 0), begin, []
    for start, stop in [span for span in spans if span[1] <= end]:
        excerpt = (excerpt + _blanks_folded(text[at:start])).lstrip()
        inside = _blanks_folded(text[start:stop])
        found.append((len(excerpt), len(excerpt) + len(inside)))
        excerpt, at = excerpt + inside, stop
    rest = _blanks_folded(text[at:end])
    return (excerpt + rest + "…" * (end < len(text))).strip(), found


def _blanks_folded(text: str) -> str:
    return re.sub(r"[\s\x00-\x1f\x7f-\x9f]+", " ", text)


def _hit(
    row: sqlite3.Row,
    where: Literal["content", "reasoning", "title"],
    excerpt: str,
    spans: Sequence[_Span],
) -> Hit:
    return Hit(
        conversation=row["conversation"],
        title=row["title"] or UNTITLED,
        message=row["id"],
        role=row["role"],
        where=where,
        excerpt=excerpt,
        spans=tuple(spans),
        updated=moment(row["updated"]),
    )
