"""Text comes out the same however it was cut into tokens and rounds, and nothing is given out that may yet change."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specchat.engine.rounds import Origin
from specchat.engine.text import Piece, ReplyText

ORIGINS = st.sampled_from(list(Origin))
# Few letters, so that stop strings and tags really occur; "é" and "€" have several bytes.
LETTERS = st.text(alphabet="abé€\n ", max_size=30)


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def read(parts: Sequence[bytes], stop: Sequence[str] = (), **start: bool) -> tuple[list[Piece], ReplyText]:
    text = ReplyText(stop, **start)
    pieces: list[Piece] = []
    for part in parts:
        if text.stopped:
            break
        pieces += text.feed([(part, Origin.PLAIN)])
    return pieces + text.finish(), text


def joined(pieces: Sequence[Piece], *, reasoning: bool = False) -> str:
    return "".join(piece.text for piece in pieces if piece.reasoning == reasoning)


def first_stop(text: str, stop: Sequence[str]) -> int | None:
    """Where the stop string that is complete first begins."""
    found = [(at + len(string), at) for string in stop if string and (at := text.find(string)) >= 0]
    return min(found)[1] if found else None


@given(st.binary(max_size=40), st.lists(st.integers(0, 50), max_size=8))
def test_any_split_of_any_bytes_gives_the_same_text(data: bytes, places: list[int]) -> None:
    pieces, _ = read(cut(data, places), in_answer=True)

    assert joined(pieces) == data.decode("utf-8", "replace")


@given(LETTERS, st.lists(st.integers(0, 80), max_size=10), st.lists(st.text("abé€", max_size=4), max_size=3))
def test_cutting_at_stop_strings_equals_find_on_the_whole(text: str, places: list[int], stop: list[str]) -> None:
    pieces, reply = read(cut(text.encode(), places), stop, in_answer=True)

    at = first_stop(text, stop)
    assert reply.stopped == (at is not None)
    assert joined(pieces) == text[:at]


@given(
    LETTERS, st.lists(st.integers(0, 80), max_size=10), st.lists(st.text("abé€", min_size=1, max_size=4), max_size=3)
)
def test_the_tokens_kept_are_those_wholly_before_the_stop_string(text: str, places: list[int], stop: list[str]) -> None:
    tokens = [token for token in cut(text.encode(), places) if token]
    _, reply = read(tokens, stop)

    at = first_stop(text, stop)
    budget = len(text[:at].encode())
    whole = [i for i in range(len(tokens) + 1) if len(b"".join(tokens[:i])) <= budget]
    assert reply.n_tokens == whole[-1]


@given(LETTERS, st.lists(st.integers(0, 80), max_size=10), st.lists(st.text("abé€", max_size=4), max_size=3))
def test_text_is_held_back_only_while_it_can_become_a_stop_string(
    text: str, places: list[int], stop: list[str]
) -> None:
    reply = ReplyText(stop, in_answer=True)
    given_out, seen = "", b""
    for token in cut(text.encode(), places):
        given_out += joined(reply.feed([(token, Origin.PLAIN)]))
        seen += token
        if reply.stopped:
            break
        held = seen.decode("utf-8", "ignore").removeprefix(given_out)
        assert held == "" or any(string.startswith(held) for string in stop)


@given(st.lists(st.tuples(LETTERS, ORIGINS), max_size=10))
def test_every_character_has_the_origin_of_the_token_that_completed_it(tokens: list[tuple[str, Origin]]) -> None:
    reply = ReplyText(("ab",), in_answer=True)
    pieces = [piece for text, origin in tokens for piece in reply.feed([(text.encode(), origin)])] + reply.finish()

    expected = [(character, origin) for text, origin in tokens for character in text]
    got = [(character, piece.origin) for piece in pieces for character in piece.text]
    assert got == expected[: len(got)]


def test_a_character_over_two_tokens_belongs_to_the_second() -> None:
    pieces = ReplyText(in_answer=True).feed([(b"\xe2\x82", Origin.ACCEPTED), (b"\xac", Origin.BONUS)])

    assert pieces == [Piece("€", Origin.BONUS)]


def test_half_a_character_at_the_end_is_one_replacement_character() -> None:
    pieces, _ = read([b"a", b"\xf0\x9f", b"\x98"], in_answer=True)

    assert joined(pieces) == "a\ufffd"


def test_half_a_character_of_the_stop_string_is_not_kept() -> None:
    _, reply = read([b"a", b"\xc3", b"\xa9b"], ["é"])

    assert reply.n_tokens == 1


def test_a_stop_string_inside_a_token_keeps_the_text_before_it_and_drops_the_token() -> None:
    pieces, reply = read([b"one", b" two\nthr", b"ee"], ["\nth"])

    assert joined(pieces) == "one two"
    assert reply.n_tokens == 1


def test_nothing_is_taken_after_a_stop_string() -> None:
    reply = ReplyText(["x"], in_answer=True)
    pieces = reply.feed([(b"a", Origin.PLAIN), (b"x", Origin.PLAIN), (b"b", Origin.PLAIN)])

    assert joined(pieces + reply.finish()) == "a"


REASONINGS = st.text(alphabet="ab</think> \n", max_size=20).filter(lambda text: "</think>" not in text)


@given(REASONINGS, LETTERS, st.lists(st.integers(0, 80), max_size=10), st.booleans())
def test_reasoning_and_answer_are_told_apart_in_any_split(
    reasoning: str, answer: str, places: list[int], opened_by_prompt: bool
) -> None:
    written = ("" if opened_by_prompt else "<think>") + reasoning + "</think>" + answer
    pieces, _ = read(cut(written.encode(), places), in_reasoning=opened_by_prompt)

    assert joined(pieces, reasoning=True) == reasoning.strip()
    assert joined(pieces) == answer.lstrip("\n")


@given(LETTERS, st.lists(st.integers(0, 80), max_size=10))
def test_an_answer_may_speak_of_the_tags(text: str, places: list[int]) -> None:
    written = "Yes: " + text + "<think>x</think>"
    pieces, _ = read(cut(written.encode(), places))

    assert joined(pieces) == written


@pytest.mark.parametrize(
    ("written", "reasoning", "answer"),
    [
        ("<think>\nhm\n</think>\n\nYes", "hm", "Yes"),
        ("<think>\n\n</think>\n\nYes", "", "Yes"),
        ("\n<think>hm</think>Yes", "hm", "Yes"),
        ("<think>\nunfinished\n", "unfinished", ""),
        ("<think>\nunfinished </thi", "unfinished </thi", ""),
        ("<thin", "", "<thin"),
        ("  indented", "", "  indented"),
        ("<think>hm</think>\n\n    code", "hm", "    code"),
        ("<think>hm</think>\n", "hm", ""),
        ("", "", ""),
    ],
)
def test_the_shapes_of_a_reasoning_block(written: str, reasoning: str, answer: str) -> None:
    pieces, _ = read([written.encode()])

    assert (joined(pieces, reasoning=True), joined(pieces)) == (reasoning, answer)


def test_reasoning_streams_while_it_is_written() -> None:
    reply = ReplyText(in_reasoning=True)

    assert reply.feed([(b"\nFirst, the", Origin.PLAIN)]) == [Piece("First, the", Origin.PLAIN, reasoning=True)]


def test_a_continued_answer_is_not_searched_for_reasoning() -> None:
    pieces, _ = read([b"<think> is a tag"], in_answer=True)

    assert joined(pieces) == "<think> is a tag"
