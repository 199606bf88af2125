"""Searching: what is found, in which order, where exactly, and that no query can do harm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specchat.history import Hit, Store


class Clock:
    now = 1_750_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> Iterator[Store]:
    with Store(None, clock=clock) as store:
        yield store


def say(store: Store, question: str, answer: str = "", reasoning: str = "") -> str:
    """A conversation of one exchange."""
    talk = store.create().id
    asked = store.send(talk, question, after=None).message
    reply = store.begin_reply(asked.id)
    store.append_to(reply.id, answer, reasoning)
    store.finish(reply.id)
    return talk


def marked(hit: Hit) -> str:
    """The excerpt with its spans in brackets."""
    text = hit.excerpt
    for start, end in reversed(hit.spans):
        text = f"{text[:start]}[{text[start:end]}]{text[end:]}"
    return text


def found(store: Store, query: str, *, reasoning: bool = False) -> list[str]:
    return [marked(hit) for hit in store.search(query, reasoning=reasoning)]


@pytest.mark.parametrize(
    ("query", "hit"),
    [
        ("magnet", "How do [magnets] work?"),
        ("MAGNETS how", "[How] do [magnets] work?"),
        ('"do magnets"', "How [do magnets] work?"),
        ('"magnet"', None),
        ('"magnets do"', None),
        ("magnets fish", None),
        ("agnets", None),
        ('"magnets wor', None),  # a quotation not closed yet is a quotation
        ('"how do', "[How do] magnets work?"),
    ],
)
def test_words_begin_words_and_quotations_are_exact(store: Store, query: str, hit: str | None) -> None:
    say(store, "How do magnets work?")
    assert found(store, query) == ([hit] if hit else [])


@pytest.mark.parametrize(
    ("text", "query", "hit"),
    [
        ("Crème brûlée", "creme brulee", "[Crème] [brûlée]"),
        ("naive", "naïve", "[naive]"),
        ("call snake_case_name(x)", "snake_case", "call [snake_case]_name(x)"),
        ("机器学习模型很大", "学习", "机器[学习]模型很大"),
        ("机器学习 with torch", "学习 torch", "机器[学习] with [torch]"),
        ("ここにある", "にあ", "ここ[にあ]る"),
        ("f :: a -> b", "->", "f :: a [->] b"),
        ("written in C++ today", "c++", "written in [C++] today"),
        ("100% sure", "100%", "[100]% sure"),
        ("fifty %_! ok", "%_!", "fifty [%_!] ok"),
        ("a 🦊 ran", "🦊", "a [🦊] ran"),
        ("5 apples", "5", "[5] apples"),
    ],
)
def test_every_script_and_sign_can_be_found(store: Store, text: str, query: str, hit: str) -> None:
    say(store, text)
    say(store, "something else entirely")
    assert found(store, query) == [hit]


def test_signs_are_no_wildcards(store: Store) -> None:
    say(store, "nothing of the kind")
    assert found(store, "%") == found(store, "_") == found(store, "*") == found(store, "n%g ->") == []


def test_reasoning_is_searched_on_request_and_said(store: Store) -> None:
    say(store, "question", "the answer", "a zebra thought")
    assert store.search("zebra") == ()
    (hit,) = store.search("zebra", reasoning=True)
    assert (hit.where, hit.role, marked(hit)) == ("reasoning", "assistant", "a [zebra] thought")
    # One word here and one there is a hit as well: the excerpt shows the answer.
    (hit,) = store.search("zebra answer", reasoning=True)
    assert (hit.where, marked(hit)) == ("content", "the [answer]")
    assert store.search("zebra ->", reasoning=True) == ()


def test_titles_given_by_hand_come_first(store: Store, clock: Clock) -> None:
    named = say(store, "one")
    store.rename(named, "All about magnètes and C++")
    clock.now += 1
    say(store, "magnetes here")
    first, second = store.search("magnetes")
    assert (first.where, first.message, marked(first)) == ("title", None, "All about [magnètes] and C++")
    assert (second.where, second.role) == ("content", "user")
    assert found(store, "c++") == ["All about magnètes and [C++]"]
    assert store.search("magnetes", conversation=named) == ()
    # A title made from the question is found once, as the question.
    assert len(store.search("here")) == 1


def test_the_better_match_comes_first_and_the_later_of_equals(store: Store, clock: Clock) -> None:
    def later(text: str) -> str:
        clock.now += 60
        return say(store, text)

    for _ in range(20):
        later("filler text about nothing")
    best = later("zebra zebra zebra")
    passing = later("a zebra " + "among many other animals " * 30)
    twins = [later("one zebra stood there") for _ in range(3)]
    order = [hit.conversation for hit in store.search("zebra")]
    assert order == [best, *reversed(twins), passing]
    assert [hit.conversation for hit in store.search("zebra", limit=2)] == order[:2]


def test_a_word_that_is_everywhere_ranks_nothing_so_the_time_does(store: Store, clock: Clock) -> None:
    talks = []
    for filler in (5, 0, 9, 2):
        clock.now += 60
        talks.append(say(store, "zebra " + "filler " * filler))
    assert [hit.conversation for hit in store.search("zebra")] == talks[::-1]


def test_all_branches_are_searched_and_one_conversation_if_wanted(store: Store) -> None:
    talk = say(store, "zebra", "stripes")
    say(store, "zebra elsewhere")
    old = store.path(store.conversation(talk).leaf)[0]
    store.edit(old.id, "a newer zebra")
    assert len(store.search("zebra")) == 3
    here = store.search("zebra", conversation=talk)
    assert {hit.message for hit in here} == {message.id for message in store.branches(old.id)}
    assert len(store.search("->", conversation=talk)) == 0


def test_a_long_text_is_shown_around_the_match(store: Store) -> None:
    filler = "word " * 500
    say(store, "one", f"{filler}\n\n\tzebra\x1b[31m\x00 crossing {filler}")
    for query in ("zebra", "zebra crossing", "\u200bzebra"):
        (text,) = found(store, query)
        assert "[zebra]" in text
        assert len(text) < 250
        assert text.startswith("…")
        assert text.endswith("…")
        assert not any(ord(c) < 32 for c in text)


@pytest.mark.parametrize("query", ["zebra", "zeb", "->", "31mred"])
def test_nothing_of_an_escape_sequence_is_left(store: Store, query: str) -> None:
    filler = "word " * 100
    say(store, f"{filler}\x1b]0;title\x07\x1b[31mred\x1b[0m zebra -> \x1bMx {filler}")
    (hit,) = store.search(query)
    assert "red zebra -> x word" in hit.excerpt
    assert "31m" not in hit.excerpt
    assert "0;title" not in hit.excerpt
    assert marked(hit).count("[") == 1
    shown = [hit.excerpt[start:end] for start, end in hit.spans]
    assert shown == [{"zeb": "zebra", "31mred": "red"}.get(query, query)]


def test_what_is_found_only_inside_an_escape_sequence_is_shown_without_a_mark(store: Store) -> None:
    say(store, "before \x1b]0;title\x07 after")
    (hit,) = store.search("title")
    assert (hit.excerpt, hit.spans) == ("before after", ())


def test_text_that_looks_like_a_mark_moves_no_span(store: Store) -> None:
    say(store, "\x01\x02[b]<b>zebra</b>[/b]\x03 zebra")
    assert found(store, "zebra") == ["[b]<b>[zebra]</b>[/b] [zebra]"]


@pytest.mark.parametrize(
    "query",
    [
        *(
            "",
            " ",
            '"',
            '""',
            "'",
            "''",
            "*",
            "-",
            "+",
            "^",
            "(",
            ")",
            ":",
            "{}",
            "\\",
            ";",
            "\0",
            "%",
            "_",
            "!",
            "\ud800",
        ),
        *("AND", "OR", "NOT", "NEAR", "a AND", "AND b", "NOT a", "NEAR(a b, 2)", "a OR b", "content:", "content : a"),
        *("-content:a", "a*", "*a", "a**", '"a" *', '"a"*"b"', "^a", "a + b", '" OR 1=1 --', "'; DROP TABLE messages"),
        *("a" * 10_000, "a " * 10_000, '" ' * 1000, "(" * 1000, "-> " * 1000),
    ],
)
def test_no_query_does_harm(store: Store, query: str) -> None:
    say(store, "a b content and or not near", "drop table messages", "1=1")
    for reasoning in (False, True):
        for hit in store.search(query, reasoning=reasoning):
            assert all(0 <= start < end <= len(hit.excerpt) for start, end in hit.spans)
    assert store.counts().messages == 2


@settings(deadline=None)
@given(st.text(max_size=60), st.text(max_size=60), st.booleans())
def test_any_text_is_a_query_and_words_kept_are_words_found(text: str, query: str, reasoning: bool) -> None:
    with Store(None) as store:
        say(store, f"{text} needle", query, text)
        for hit in store.search(query, reasoning=reasoning):
            assert hit.excerpt == " ".join(hit.excerpt.split())
            ends = [end for span in hit.spans for end in span]
            assert ends == sorted(ends)
            assert all(0 <= end <= len(hit.excerpt) for end in ends)
        assert any("needle" in hit.excerpt for hit in store.search("needle"))


def test_operators_are_words(store: Store) -> None:
    say(store, "this and that")
    say(store, "this only")
    assert found(store, "this AND that") == ["[this] [and] [that]"]
    assert found(store, "this NOT that") == []
    assert found(store, "content:this") == []
