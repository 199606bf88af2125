"""Conversations, their branches, and two windows on one of them."""

from __future__ import annotations

import os
import platform
import sqlite3
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specchat.history import (
    AmbiguousConversationError,
    HistoryError,
    Message,
    Store,
    UnknownConversationError,
    ids,
    owner,
    title_of,
)
from specchat.history.titles import TITLE_LENGTH, clean_title
from specchat.history.values import UNTITLED

# Text that is markup or an escape sequence wherever it is not treated as text.
HOSTILE = "# [/mnt/data/models] [b + [red]x\x1b[31m\x07\u202e"


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


@pytest.fixture
def store(file: Path, clock: Clock) -> Iterator[Store]:
    with Store(file, clock=clock) as store:
        yield store


@pytest.fixture
def other(file: Path, clock: Clock) -> Iterator[Store]:
    """A second window on the same file."""
    with Store(file, clock=clock) as other:
        yield other


def exchange(store: Store, conversation: str, question: str, after: int | None = None) -> Message:
    """A question with a whole reply, which it returns."""
    asked = store.send(conversation, question, after=after).message
    reply = store.begin_reply(asked.id)
    store.append_to(reply.id, f"reply to {question}")
    return store.finish(reply.id)


def contents(store: Store, conversation: str) -> list[str]:
    return [message.content for message in store.path(store.conversation(conversation).leaf)]


def test_everything_of_a_reply_is_found_again_by_another_window(store: Store, other: Store) -> None:
    begun = store.create(pair="small", system_prompt="Be brief.", settings={"temperature": 0.5})
    question = store.send(begun.id, "Why?", after=None, unsent="next").message
    reply = store.begin_reply(question.id, pair="small", settings={"seed": 7})
    store.append_to(reply.id, reasoning="Hmm. ")
    store.append_to(reply.id, "Because", reasoning="So.")
    growing = other.message(reply.id)
    assert (growing.state, growing.content, growing.reasoning) == ("streaming", "Because", "Hmm. So.")
    store.finish(reply.id, figures={"acceptance": 0.8, "by_round": [1, 2], "broken": float("nan")})

    kept = other.conversation(begun.id)
    assert (kept.pair, kept.system_prompt, kept.settings) == ("small", "Be brief.", {"temperature": 0.5})
    assert (kept.leaf, kept.unsent, kept.title, kept.messages) == (reply.id, "next", "Why?", 2)
    asked, answered = other.path(kept.leaf)
    assert (asked.role, asked.content, asked.state, asked.depth) == ("user", "Why?", "complete", 0)
    assert (answered.role, answered.content, answered.state) == ("assistant", "Because", "complete")
    assert (answered.pair, answered.settings, answered.parent) == ("small", {"seed": 7}, asked.id)
    assert answered.figures == {"acceptance": 0.8, "by_round": [1, 2], "broken": None}


@settings(deadline=None)
@given(st.text(), st.text())
def test_any_text_can_be_kept(first: str, second: str) -> None:
    with Store(None) as store:
        conversation = store.create(system_prompt=first).id
        question = store.send(conversation, first, after=None, unsent=second).message
        reply = store.begin_reply(question.id)
        store.append_to(reply.id, first, second)
        store.append_to(reply.id, second, first)
        kept = store.message(reply.id)
        # NUL and lone surrogates become the replacement character; nothing else changes.
        assert kept.content == (first + second).replace("\0", "\ufffd")
        assert kept.reasoning == (second + first).replace("\0", "\ufffd")
        assert store.conversation(conversation).unsent == second.replace("\0", "\ufffd")


def test_what_utf8_cannot_hold_is_replaced(store: Store) -> None:
    question = store.send(store.create().id, "a\udc80b\0c", after=None).message
    assert store.message(question.id).content == "a\ufffdb\ufffdc"


# Branches


def test_an_edited_question_stands_beside_the_old_one(store: Store) -> None:
    talk = store.create().id
    first = exchange(store, talk, "one")
    second = exchange(store, talk, "two", first.id)
    old = store.path(second.id)[2]
    new = store.edit(old.id, "two, better", unsent="kept")
    assert (new.parent, new.branch, new.branches) == (first.id, 2, 2)
    assert contents(store, talk) == ["one", "reply to one", "two, better"]
    assert [message.content for message in store.branches(old.id)] == ["two", "two, better"]
    assert store.conversation(talk).unsent == "kept"
    # The old branch is whole, and comes back down to its last turn.
    assert store.switch(old.id).leaf == second.id
    assert contents(store, talk) == ["one", "reply to one", "two", "reply to two"]


def test_the_first_question_can_be_edited_too(store: Store) -> None:
    talk = store.create().id
    reply = exchange(store, talk, "one")
    question = store.path(reply.id)[0]
    assert store.edit(question.id, "uno").parent is None
    assert store.conversation(talk).title == "uno"
    assert contents(store, talk) == ["uno"]


def test_regenerating_makes_a_reply_beside_the_old_one(store: Store) -> None:
    talk = store.create().id
    first = exchange(store, talk, "one")
    assert first.parent is not None
    again = store.begin_reply(first.parent)
    assert (again.branch, again.branches, again.state) == (2, 2, "streaming")
    assert store.conversation(talk).leaf == again.id
    assert store.message(first.id).content == "reply to one"


def test_switching_returns_to_the_turn_each_branch_was_left_at(store: Store) -> None:
    talk = store.create().id
    top = exchange(store, talk, "top")
    left = exchange(store, talk, "left", top.id)
    deeper = [exchange(store, talk, f"left {i}", left.id) for i in (1, 2)]
    right = exchange(store, talk, "right", top.id)
    store.switch(deeper[0].id)
    store.switch(right.id)
    assert store.switch(left.id).leaf == deeper[0].id
    # A deep message of a branch not shown opens that very branch, from the first turn down.
    store.switch(right.id)
    assert store.switch(deeper[1].id).leaf == deeper[1].id
    assert store.switch(top.id).leaf == deeper[1].id


def test_only_a_question_is_edited_or_answered_and_only_a_reply_continued(store: Store) -> None:
    reply = exchange(store, store.create().id, "one")
    assert reply.parent is not None
    for wrong in (store.edit, store.begin_reply):
        with pytest.raises(HistoryError, match="question"):
            wrong(reply.id, *(["text"] if wrong == store.edit else []))
    with pytest.raises(HistoryError, match="no reply"):
        store.continue_reply(reply.parent)


def test_a_stopped_reply_grows_on(store: Store) -> None:
    question = store.send(store.create().id, "count", after=None).message
    reply = store.begin_reply(question.id)
    store.append_to(reply.id, "one two ")
    store.finish(reply.id, "stopped", figures={"tokens": 2})
    turn = store.continue_reply(reply.id)
    assert (turn.forked, turn.message.id, turn.message.state) == (False, reply.id, "streaming")
    assert turn.message.figures == {"tokens": 2}
    store.append_to(reply.id, "three")
    assert store.finish(reply.id).content == "one two three"


def test_continuing_a_reply_that_has_followers_leaves_them_their_ground(store: Store) -> None:
    talk = store.create().id
    first = exchange(store, talk, "one")
    follower = exchange(store, talk, "two", first.id)
    turn = store.continue_reply(first.id)
    assert turn.forked
    store.append_to(turn.message.id, ", and more")
    store.finish(turn.message.id)
    assert contents(store, talk) == ["one", "reply to one, and more"]
    assert [m.content for m in store.path(follower.id)] == ["one", "reply to one", "two", "reply to two"]


def test_a_reply_that_has_ended_takes_no_more(store: Store) -> None:
    reply = exchange(store, store.create().id, "one")
    with pytest.raises(HistoryError, match="has ended"):
        store.append_to(reply.id, "more")
    with pytest.raises(HistoryError, match="has ended"):
        store.finish(reply.id)
    assert store.message(reply.id).content == "reply to one"


def test_the_end_of_a_reply_may_bring_its_final_text(store: Store) -> None:
    question = store.send(store.create().id, "one", after=None).message
    reply = store.begin_reply(question.id)
    store.append_to(reply.id, "partial")
    done = store.finish(reply.id, "failed", content="whole", reasoning="because")
    assert (done.content, done.reasoning, done.state) == ("whole", "because", "failed")
    assert store.search("partial") == ()


def test_the_last_turns_are_read_without_the_others(store: Store) -> None:
    def steps(leaf: int) -> int:
        count = 0

        def counted() -> int:
            nonlocal count
            count += 1
            return 0

        store._db.set_progress_handler(counted, 1)
        try:
            assert len(store.path(leaf, 20)) == 20
        finally:
            store._db.set_progress_handler(None, 0)
        return count

    talk, leaf, costs = store.create().id, None, {}
    for number in range(1, 401):
        leaf = exchange(store, talk, f"question {number}", leaf).id
        if number in (20, 400):
            costs[number] = steps(leaf)
    assert costs[400] < costs[20] * 1.1
    # Page by page, the pages join to the whole branch.
    whole, start = store.path(leaf), leaf
    joined: tuple[Message, ...] = ()
    while page := store.path(start, 30):
        joined, start = (*page, *joined), page[0].parent
    assert joined == whole
    assert [message.depth for message in whole] == list(range(800))


# Two windows


def test_two_windows_make_two_branches_and_the_second_is_told(store: Store, other: Store) -> None:
    talk = store.create().id
    seen = exchange(store, talk, "shared")
    here = store.send(talk, "here", after=seen.id)
    there = other.send(talk, "there", after=seen.id)
    assert (here.forked, there.forked) == (False, True)
    mine, theirs = store.begin_reply(here.message.id), other.begin_reply(there.message.id)
    for letter in "abc":
        store.append_to(mine.id, letter)
        other.append_to(theirs.id, letter.upper())
    store.finish(mine.id)
    other.finish(theirs.id)
    # Each goes on with its own branch, and is not told again.
    assert not store.send(talk, "here 2", after=mine.id).forked
    assert not other.send(talk, "there 2", after=theirs.id).forked
    branches = {tuple(m.content for m in store.path(leaf.id)) for leaf in store.tree(talk)[-2:]}
    assert branches == {
        ("shared", "reply to shared", "here", "abc", "here 2"),
        ("shared", "reply to shared", "there", "ABC", "there 2"),
    }


def test_the_first_turn_of_an_empty_conversation_forks_too(store: Store, other: Store) -> None:
    talk = store.create().id
    assert not store.send(talk, "here", after=None).forked
    assert other.send(talk, "there", after=None).forked


def test_no_question_stands_on_a_reply_that_another_window_is_writing(store: Store, other: Store) -> None:
    talk = store.create().id
    seen = exchange(store, talk, "shared")
    question = store.send(talk, "here", after=seen.id).message
    reply = store.begin_reply(question.id)
    turn = other.send(talk, "there", after=reply.id)
    assert turn.forked
    assert turn.message.parent == seen.id
    with pytest.raises(HistoryError, match="still being written"):
        store.send(talk, "too early", after=reply.id)
    with pytest.raises(HistoryError, match="still being written"):
        other.continue_reply(reply.id)
    with pytest.raises(HistoryError, match="another window"):
        other.append_to(reply.id, "interleaved")
    store.append_to(reply.id, "mine")
    assert store.finish(reply.id).content == "mine"


def test_a_window_sees_that_another_has_written(store: Store, other: Store) -> None:
    before = store.version()
    assert store.version() == before
    other.create()
    assert store.version() != before


def test_a_closed_window_leaves_its_reply_stopped_and_searchable(store: Store, file: Path) -> None:
    with Store(file) as other:
        question = other.send(other.create().id, "one", after=None).message
        reply = other.begin_reply(question.id)
        other.append_to(reply.id, "unfinished")
    assert store.message(reply.id).state == "stopped"
    assert [hit.message for hit in store.search("unfinished")] == [reply.id]
    other.close()  # twice does no harm


@pytest.mark.parametrize(
    ("who", "silent", "alive"),
    [
        ("999999999/1700000000.00/1/{node}", 0, False),  # no such process
        ("{pid}/1700000000.00/1/{node}", 0, False),  # its number belongs to this process now
        ("{parent}/1700000000.00/1/{node}", 0, False),  # its number belongs to a later process now
        ("{parent}/{started}/1/{node}", 1e6, True),  # another process
        ("1/1700000000.00/1/far/away", 10, True),  # cannot be asked, but writes
        ("1/1700000000.00/1/far/away", 100, False),
    ],
)
def test_a_writer_lives_as_long_as_its_process(who: str, silent: float, alive: bool) -> None:
    parent = psutil.Process(os.getppid())
    facts = {"pid": os.getpid(), "parent": parent.pid, "started": parent.create_time(), "node": platform.node()}
    assert owner.is_alive(who.format(**facts), silent) == alive


def test_a_writer_of_this_process_lives_as_long_as_its_store() -> None:
    mine = owner.new_owner()
    assert owner.is_alive(mine, 1e6)
    owner.release(mine)
    assert not owner.is_alive(mine, 0)


def test_a_writer_taken_for_dead_writes_on(store: Store, other: Store) -> None:
    question = store.send(store.create().id, "one", after=None).message
    reply = store.begin_reply(question.id)
    store.append_to(reply.id, "zebra ")
    other._db.execute("UPDATE messages SET state = 'stopped' WHERE id = ?", (reply.id,))
    store.append_to(reply.id, "crossing")
    assert other.message(reply.id).state == "streaming"
    assert store.finish(reply.id).content == "zebra crossing"
    assert [hit.message for hit in store.search("zebra crossing")] == [reply.id]


def test_threads_may_share_a_store(store: Store) -> None:
    def write(number: int) -> None:
        reply = store.begin_reply(questions[number].id)
        for _ in range(50):
            store.append_to(reply.id, str(number))
        store.finish(reply.id)

    questions = [store.send(store.create().id, f"question {n}", after=None).message for n in range(4)]
    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    replies = [store.tree(question.conversation)[1] for question in questions]
    assert [reply.content for reply in replies] == [str(n) * 50 for n in range(4)]


# The list


def test_the_list_is_paged_by_time_and_hides_what_was_never_used(store: Store, clock: Clock) -> None:
    talks = []
    for _ in range(7):
        clock.now += 1
        talks.append(store.create().id)
        exchange(store, talks[-1], "hello")
    store.create()
    clock.now += 1
    exchange(store, talks[2], "again")
    store.rename(talks[0], "no news")
    expected = [talks[2], *reversed(talks[:2] + talks[3:])]
    first = store.conversations(limit=4)
    rest = store.conversations(limit=4, after=first[-1])
    assert [talk.id for talk in (*first, *rest)] == expected
    last = store.last()
    assert last is not None
    assert last.id == talks[2]
    store.keep_unsent(store.create().id, "not yet")
    assert len(store.conversations()) == 8


def test_pages_lose_none_of_those_used_at_the_same_moment(store: Store) -> None:
    talks = [store.create().id for _ in range(5)]
    for talk in talks:
        exchange(store, talk, "hello")
    first = store.conversations(limit=2)
    second = store.conversations(limit=2, after=first[-1])
    third = store.conversations(limit=2, after=second[-1])
    assert [talk.id for talk in (*first, *second, *third)] == talks[::-1]


def test_an_empty_history_has_no_last_conversation(store: Store) -> None:
    assert store.last() is None
    assert store.conversations() == ()
    assert store.search("anything") == ()
    assert store.path(None) == ()


def test_ids_are_short_distinct_and_sort_by_time(store: Store, clock: Clock) -> None:
    made = [store.create().id for _ in range(5)]
    clock.now += 1000
    made.append(store.create().id)
    assert made == sorted(set(made))
    assert {len(name) for name in made} == {6}
    clock.now = 0  # a machine whose clock was never set
    assert {store.create().id for _ in range(2)} == {"000000", "000001"}


@settings(deadline=None)
@given(st.integers(0, 2**31), st.integers(0, 2**31))
def test_ids_order_as_the_seconds_they_stand_for(one: int, two: int) -> None:
    until_2058 = ids.EPOCH + 32**6
    one, two = (ids.EPOCH + second % (until_2058 - ids.EPOCH) for second in (one, two))
    assert (ids.encode(one) < ids.encode(two)) == (one < two)
    assert ids.normalised(f" {ids.encode(one).upper()} ") == ids.encode(one)


def test_a_conversation_is_found_by_the_beginning_of_its_id(store: Store, clock: Clock) -> None:
    one = store.create()
    clock.now += 40
    two = store.create()
    assert store.find(one.id) == one
    assert store.find(f" {two.id.upper()}\n") == two
    with pytest.raises(AmbiguousConversationError, match="more than one conversation") as raised:
        store.find(one.id[:2])
    assert raised.value.matches == (two, one)
    store.delete(two.id)
    assert store.find(one.id[:2]) == one


@pytest.mark.parametrize("prefix", ["", " ", "zzzzzzz", "%", "_", "'; DROP TABLE messages", "\0", "\udc80", "ü"])
def test_an_unknown_id_is_one_clear_sentence(store: Store, prefix: str) -> None:
    store.create()
    with pytest.raises(UnknownConversationError, match="no conversation has an id that begins with"):
        store.find(prefix)
    with pytest.raises(UnknownConversationError):
        store.conversation(prefix)


def test_a_deleted_conversation_comes_back_whole(store: Store) -> None:
    talk = store.create().id
    exchange(store, talk, "precious")
    store.delete(talk)
    assert store.conversations() == ()
    assert store.search("precious") == ()
    assert (store.counts().conversations, store.counts().deleted) == (0, 1)
    store.restore(talk)
    assert [found.id for found in store.conversations()] == [talk]
    assert contents(store, talk) == ["precious", "reply to precious"]
    with pytest.raises(UnknownConversationError):
        store.delete("zzzzzz")


def test_a_turn_brings_a_deleted_conversation_back(store: Store, other: Store) -> None:
    talk = store.create().id
    reply = exchange(store, talk, "one")
    other.delete(talk)
    store.send(talk, "still here", after=reply.id)
    assert [found.id for found in other.conversations()] == [talk]


def test_purging_removes_the_long_deleted_and_the_never_used(store: Store, clock: Clock) -> None:
    long_ago, deleted, unused, draft, used = (store.create().id for _ in range(5))
    for talk in (used, deleted, long_ago):
        exchange(store, talk, f"precious in {talk}")
    store.keep_unsent(draft, "half a thought")
    store.delete(long_ago)
    clock.now += timedelta(days=40).total_seconds()
    store.delete(deleted)
    assert store.purge() == 2
    for gone in (long_ago, unused):
        with pytest.raises(UnknownConversationError, match="any more"):
            store.conversation(gone)
    assert store.counts().messages == 4
    store.restore(deleted)
    assert {hit.conversation for hit in store.search("precious")} == {deleted, used}
    assert store.purge() == 0


def test_what_was_deleted_is_named_the_latest_first(store: Store, clock: Clock) -> None:
    assert store.last_deleted() is None
    first, second = store.create().id, store.create().id
    for talk in (second, first):
        clock.now += 1
        store.delete(talk)
    for talk in (first, second):
        last = store.last_deleted()
        assert last is not None
        assert last.id == talk
        store.restore(talk)
    assert store.last_deleted() is None


def test_the_id_of_a_removed_message_never_comes_to_mean_another(store: Store) -> None:
    """A window may still show it."""
    purged, kept = store.create().id, store.create().id
    removed = exchange(store, purged, "one").id
    store.delete(purged)
    store.purge(keep_deleted=timedelta(0))
    exchange(store, kept, "two")
    for call in (store.message, store.switch, store.branches, store.begin_reply, store.continue_reply):
        with pytest.raises(HistoryError, match="no longer exists"):
            call(removed)
    with pytest.raises(HistoryError, match="no longer exists"):
        store.send(kept, "three", after=removed)
    with pytest.raises(UnknownConversationError):
        store.send(purged, "three", after=None)


def test_a_turn_cannot_follow_one_of_another_conversation(store: Store) -> None:
    one, two = store.create().id, store.create().id
    reply = exchange(store, one, "one")
    with pytest.raises(sqlite3.IntegrityError):
        store.send(two, "two", after=reply.id)
    assert store.tree(two) == ()


def test_a_conversation_of_many_turns_can_be_purged(store: Store) -> None:
    talk = store.create().id
    store.send(talk, "first", after=None)
    store._db.execute(  # deeper than SQLite nests triggers
        """WITH RECURSIVE n(n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM n WHERE n < 1200)
        INSERT INTO messages(id, conversation, parent, depth, role, state, created, updated, content)
        SELECT n, ?, n - 1, n - 1, 'user', 'complete', 0, 0, 'text' FROM n""",
        (talk,),
    )
    assert len(store.path(1200)) == 1200
    store.delete(talk)
    assert store.purge(keep_deleted=timedelta(0)) == 1
    assert store.counts().messages == 0


def test_configuring_changes_only_what_is_given(store: Store) -> None:
    talk = store.create(pair="small", system_prompt="Be brief.", settings={"seed": 1}).id
    store.configure(talk, pair="large")
    store.configure(talk, settings={})
    after = store.configure(talk, system_prompt="")
    assert (after.pair, after.system_prompt, after.settings) == ("large", "", {})


# Titles


def test_a_title_is_made_from_the_first_question_until_it_is_edited(store: Store) -> None:
    talk = store.create().id
    assert store.conversation(talk).title == UNTITLED
    reply = exchange(store, talk, "\n  How do  magnets\twork?\nI wonder.")
    exchange(store, talk, "another question", reply.id)
    assert store.conversation(talk).title == "How do magnets work?"
    edited = store.rename(talk, f"  Mag\nnets {HOSTILE} ")
    assert (edited.title, edited.title_origin) == ("Mag nets # [/mnt/data/models] [b + [red]x", "edited")
    store.edit(store.path(reply.id)[0].id, "What are magnets?")
    assert store.conversation(talk).title == edited.title
    plain = store.rename(talk, " \t")
    assert (plain.title, plain.title_origin) == ("What are magnets?", "auto")


def test_a_title_is_made_from_what_was_typed_after_a_file(store: Store) -> None:
    talk = store.create().id
    question = store.send(talk, "import os\n\nwhat is this?", after=None, typed="what is this?").message
    assert store.conversation(talk).title == "what is this?"
    store.edit(question.id, "import os\n\nand this?")  # nobody can say where the file ends
    assert store.conversation(talk).title == "what is this?"
    store.edit(question.id, "import os\n\nand that?", typed="and that?")
    assert store.conversation(talk).title == "and that?"
    other = store.edit(question.id, "no file")
    assert store.conversation(talk).title == "no file"
    store.edit(other.id, "no file\nbut more")
    store.edit(question.id, "import os\n\nonce more")
    assert store.conversation(talk).title == "import os"


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("", UNTITLED),
        ("\x00\x1b\u200b\n \n", UNTITLED),
        ("short", "short"),
        ("x" * 50, "x" * 50),
        ("x" * 51, "x" * 49 + "…"),
        (
            "Explain to me, slowly, how the moon came to be where it is",
            "Explain to me, slowly, how the moon came to be…",
        ),
        ("```python\nprint(1)\n```", "print(1)"),
        ("\x1b]0;pwned\x07\x1b[1mbold\x1b[0m", "bold"),
        (HOSTILE, "# [/mnt/data/models] [b + [red]x"),
        ("one\u2028two", "one"),
        ("👩\u200d💻 code", "👩\u200d💻 code"),
    ],
)
def test_titles(text: str, title: str) -> None:
    assert title_of(text) == title


@settings(deadline=None)
@given(st.text(st.characters(codec="utf-8"), max_size=200) | st.text("\x1b[]0;m ab\n\x07"))
def test_a_title_is_one_short_line_of_visible_text(text: str) -> None:
    title = title_of(text)
    assert 0 < len(title) <= TITLE_LENGTH
    assert title.isprintable() or any(c in title for c in "\u200c\u200d") or "\xa0" in title
    assert title == " ".join(title.split())
    assert title_of(title) == title
    assert clean_title(title) == title
