"""Races on the screen: what is shown when, what they leave in the conversation, how they end."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from specchat.engine.policy import Mode, Speculation
from specchat.engine.replies import Event, Finished, Generated, Message, Notice, ReplyOptions
from specchat.engine.rounds import Origin, Round
from specchat.engine.sampling import SamplingSettings
from specchat.engine.text import Piece
from specchat.errors import SpecchatError
from specchat.history import Store
from specchat.lab import lanes
from specchat.tui.race import OTHER, PLAIN, Pace, Race, Said
from specchat.tui.screens.race import RaceScreen
from tests.scripted_client import ScriptedClient, until, words
from tests.tui import HOSTILE, Chat, chatting


def a_round(token: int, text: str, seconds: float, n: int = 1) -> Generated:
    event = Round(
        tokens=(token,) * n,
        origins=(Origin.PLAIN,) * n,
        drafter="plain",
        proposed=n - 1,
        tested=n - 1,
        accepted=n - 1,
        draft_seconds=0.0,
        target_seconds=seconds,
        total_seconds=seconds,
        context_used=1,
    )
    return Generated((Piece(text, Origin.PLAIN),), event, ScriptedClient().figures(1))


def raced(plain_first: bool = True) -> Race:
    race = Race((Message("user", "hi"),), Speculation(Mode.NGRAM), plain_first)
    first, second = race.order
    for number, side in enumerate((first, second)):
        seconds = 1.0 if side == PLAIN else 0.25
        for _ in range(4):
            race.add((side, a_round(1, "a", seconds)), now=10.0 * number)
    return race


# ---- what is shown when


@pytest.mark.parametrize("plain_first", [True, False])
def test_the_first_side_is_replayed_at_its_pace_while_the_second_runs(plain_first: bool) -> None:
    race = raced(plain_first)
    first, second = race.order
    shown = race.view(first, now=11.0)
    assert race.view(second, 11.0).pace is Pace.LIVE
    # Plain takes 4 s, the other 1 s: whichever is replayed is where it was when the other's clock showed this.
    assert shown.lane.passes == (1 if plain_first else 4)
    race.add((second, Finished("length", ScriptedClient().figures(4))), now=20.0)
    assert race.view(second, 20.0).pace is Pace.DONE
    if plain_first:
        assert race.view(first, 21.5).lane.passes == 2
        assert race.view(first, 21.5).pace is Pace.REPLAY
        assert not race.is_over(22.9)
    assert race.is_over(23.0)
    assert race.view(first, 23.0).lane.passes == 4


def test_the_second_side_waits_for_its_turn() -> None:
    race = Race((Message("user", "hi"),), Speculation(), plain_first=True)
    assert [race.view(side, 0.0).pace for side in (PLAIN, OTHER)] == [Pace.READING, Pace.WAITING]
    race.add((PLAIN, a_round(1, "a", 1.0)), 0.0)
    assert [race.view(side, 0.0).pace for side in (PLAIN, OTHER)] == [Pace.LIVE, Pace.WAITING]


def test_the_verdict_divides_tokens_per_second() -> None:
    race = raced()
    race.add((OTHER, Finished("length", ScriptedClient().figures(4))), 20.0)
    assert race.verdict == ""
    race.add(Said("The texts are identical."), 20.0)
    assert race.verdict.startswith("n-gram was 4.00× as fast as plain.")


@pytest.mark.parametrize(
    ("plain", "other", "doubtful"), [(0.030, 0.029, False), (0.030, 0.018, True), (0.018, 0.030, True)]
)
def test_a_machine_that_was_slower_on_one_side_is_said(plain: float, other: float, doubtful: bool) -> None:
    race = Race((Message("user", "hi"),), Speculation(Mode.NGRAM), plain_first=True)
    for side, seconds in ((PLAIN, plain), (OTHER, other)):
        for _ in range(lanes.ENOUGH):
            race.add((side, a_round(1, "a", seconds)), 0.0)
        race.add((side, a_round(1, "aaaa", 0.04, n=4)), 0.0)  # how long wider passes take is another matter
        race.add((side, Finished("length", ScriptedClient().figures(4))), 0.0)
    race.add(Said("The texts are identical."), 0.0)
    assert (f"took {1e3 * plain:.0f} ms for plain and {1e3 * other:.0f} ms for n-gram" in race.verdict) == doubtful
    assert ("busy" in race.verdict) == doubtful


def test_a_few_passes_tell_nothing_of_the_machine() -> None:
    assert lanes.unsteady(*raced().lanes) == ""


def test_a_side_that_was_stopped_is_not_done() -> None:
    race = raced()
    race.add((PLAIN, Finished("length", ScriptedClient().figures(4))), 0.0)
    race.add((OTHER, Finished("cancelled", ScriptedClient().figures(4))), 0.0)
    race.finish()
    assert [race.view(side, 0.0).pace for side in (PLAIN, OTHER)] == [Pace.DONE, Pace.STOPPED]


def test_text_that_was_held_back_is_not_lost() -> None:
    race = raced()
    race.add((OTHER, Finished("end", ScriptedClient().figures(4), (Piece("!", Origin.PLAIN),))), 20.0)
    assert race.lanes[OTHER].text == "aaaa!"


def test_where_two_texts_differ() -> None:
    assert lanes.difference((1, 2, 3), (1, 2, 3)) is None
    assert lanes.difference((1, 2, 3), (1, 4)) == 1
    assert "from token 2 on" in lanes.outcome(True, 1, 0.25)
    assert "0.25 apart" in lanes.outcome(True, 1, 0.25)
    assert "by chance" in lanes.outcome(False, 1, 0.0)
    assert lanes.outcome(False, None, 0.0) == lanes.outcome(True, None, 0.0) == "The texts are identical."


# ---- on the screen


def race_screen(chat: Chat) -> RaceScreen:
    assert isinstance(chat.app.screen, RaceScreen)
    return chat.app.screen


async def over(chat: Chat, *parts: str) -> None:
    await chat.shows("as fast as plain", *parts)


async def test_a_race_on_the_last_message_leaves_the_conversation_alone() -> None:
    client = ScriptedClient(words("one two three four"))
    async with chatting(client, options=greedy()) as chat:
        await chat.say("first")
        await chat.say("second")
        before = chat.session.messages
        chat.session.set_speculation(Speculation(Mode.NGRAM))
        await chat.say("/race", wait=False)
        await over(chat, "The texts are identical.", "second", "plain", "n-gram", "4 tokens", "4 target passes")
        assert [m.content for m in client.asked[-1]] == ["first", "one two three four", "second"]
        assert client.asked[-1] == client.asked[-2]
        seeds = [options.sampling.seed for options in client.options[-2:]]
        assert seeds[0] is not None
        assert seeds[0] == seeds[1]
        assert [options.max_tokens for options in client.options[-2:]] == [200, 200]
        assert client.speculation == Speculation(Mode.NGRAM)
        await chat.pilot.press("escape")
        await chat.until(lambda: chat.app.screen is chat.screen)
        assert chat.session.messages == before
        await chat.say("third")
        assert len(chat.session.messages) == 6


async def test_the_sides_take_turns_at_going_first() -> None:
    modes: list[Mode] = []

    def script(client: ScriptedClient, messages: Sequence[Message]) -> Iterator[Event]:
        modes.append(client.speculation.mode)
        yield from words("a b c")(client, messages)

    async with chatting(ScriptedClient(script)) as chat:
        await chat.say("/race go", wait=False)
        await over(chat)
        await chat.pilot.press("r")
        await chat.until(lambda: len(modes) == 4)
        await over(chat)
        assert modes == [Mode.OFF, Mode.AUTO, Mode.AUTO, Mode.OFF]
        await chat.pilot.press("escape")


async def test_with_speculation_off_it_races_what_was_on_before() -> None:
    modes: list[Mode] = []

    def script(client: ScriptedClient, messages: Sequence[Message]) -> Iterator[Event]:
        modes.append(client.speculation.mode)
        yield from words("a b c")(client, messages)

    async with chatting(ScriptedClient(script)) as chat:
        await chat.say("/speculation draft")
        await chat.pilot.press("f2")
        await chat.say("/race go", wait=False)
        await over(chat)
        assert modes == [Mode.OFF, Mode.DRAFT]
        assert chat.client.speculation.mode is Mode.OFF
        await chat.pilot.press("escape")


async def test_texts_that_differ_are_weighed_where_they_part() -> None:
    def script(client: ScriptedClient, _: Sequence[Message]) -> Iterator[Event]:
        last = 3 if client.speculation.mode is Mode.OFF else 4
        for token in (1, 2, last):
            yield a_round(token, "x", 0.01)
        yield Finished("end", client.figures(3))

    async with chatting(ScriptedClient(script), options=greedy()) as chat:
        await chat.say("/race go", wait=False)
        await over(chat, "from token 3 on", "2.5 apart")  # the scripted margin is 0.5 and the tokens before it
        await chat.pilot.press("escape")


async def test_kept_results_are_two_versions_that_survive(tmp_path: Path) -> None:
    def script(client: ScriptedClient, messages: Sequence[Message]) -> Iterator[Event]:
        which = "plainly" if client.speculation.mode is Mode.OFF else "quickly"
        yield from words(f"written {which}")(client, messages)

    store = Store(tmp_path / "history.db")
    async with chatting(ScriptedClient(script), store=store) as chat:
        await chat.say("/race go", wait=False)
        await over(chat)
        await chat.pilot.press("k")
        await chat.until(lambda: chat.app.screen is chat.screen)
        await chat.shows("go", "written quickly", "version 2 of 2", "Plain's reply")
        assert [m.content for m in chat.session.messages] == ["go", "written quickly"]
        await chat.say("and now")
        assert len(chat.session.messages) == 4
        assert chat.screen.journal.conversation is not None
        kept = chat.screen.journal.conversation.id
    replies = [m for m in store.tree(kept) if m.role == "assistant"]
    assert sorted(m.content for m in replies)[:2] == ["written plainly", "written quickly"]
    assert all(m.figures for m in replies)


async def test_esc_stops_a_race_and_nothing_of_it_stays() -> None:
    gate = threading.Event()
    async with chatting(ScriptedClient(until(gate, "beginning", "rest"))) as chat:
        await chat.say("/race go", wait=False)
        await chat.shows("beginning")
        await chat.pilot.press("escape")
        await chat.shows("Stopped")
        await chat.pilot.press("k")
        await chat.pilot.pause()
        assert race_screen(chat)
        await chat.pilot.press("escape")
        await chat.until(lambda: chat.app.screen is chat.screen)
        assert chat.session.messages == ()


async def test_a_race_asks_before_it_stops_a_reply() -> None:
    gate = threading.Event()
    async with chatting(ScriptedClient(until(gate, "beginning", "rest"))) as chat:
        await chat.say("hi", wait=False)
        await chat.shows("beginning")
        await chat.say("/race", wait=False)
        await chat.shows("A race stops it")
        await chat.pilot.press("escape")
        await chat.pilot.pause()
        assert not chat.idle
        await chat.say("/race", wait=False)
        await chat.shows("A race stops it")
        await chat.pilot.press("enter")
        await chat.until(lambda: isinstance(chat.app.screen, RaceScreen))
        gate.set()
        await over(chat)
        await chat.pilot.press("escape")
        await chat.shows("stopped")
        assert chat.session.messages[-1].content == "beginning"


async def test_a_message_that_waited_is_sent_after_the_race() -> None:
    gate = threading.Event()
    async with chatting(ScriptedClient(until(gate, "begun ", "never"))) as chat:
        await chat.say("hi", wait=False)
        await chat.shows("begun")
        await chat.say("the next one", wait=False)
        await chat.shows("Next: the next one")
        await chat.say("/race", wait=False)
        await chat.shows("A race stops it")
        chat.client.script = words("Raced.")
        await chat.pilot.press("enter")
        await chat.until(lambda: isinstance(chat.app.screen, RaceScreen))
        gate.set()
        await over(chat)
        chat.client.script = words("Answered.")
        await chat.pilot.press("escape")
        await chat.shows("Answered.")
        await chat.until(lambda: chat.idle and "Next:" not in chat.text)
        assert chat.session.messages[-2:] == (Message("user", "the next one"), Message("assistant", "Answered."))


async def test_an_engine_that_fails_in_a_race_is_said_and_left() -> None:
    def script(client: ScriptedClient, messages: Sequence[Message]) -> Iterator[Event]:
        yield from words("a")(client, messages)
        raise SpecchatError("the engine [b] died")

    async with chatting(ScriptedClient(script)) as chat:
        await chat.say("/race go", wait=False)
        await chat.shows("The engine [b] died")
        await chat.pilot.press("escape")
        await chat.until(lambda: chat.app.screen is chat.screen)


async def test_without_a_message_there_is_nothing_to_race_on() -> None:
    async with chatting() as chat:
        await chat.say("/race")
        assert "no message to race on" in chat.note
        assert chat.box.text == "/race"


@pytest.mark.parametrize("size", [(200, 50), (80, 24), (60, 20)])
async def test_hostile_text_and_narrow_terminals(size: tuple[int, int]) -> None:
    def script(client: ScriptedClient, _: Sequence[Message]) -> Iterator[Event]:
        yield Notice(HOSTILE)
        yield a_round(1, HOSTILE, 12.3, n=3)
        yield Finished("end", client.figures(3))

    async with chatting(ScriptedClient(script), size=size, options=greedy()) as chat:
        await chat.say("/race " + HOSTILE, wait=False)
        await over(chat, "12.3 s", "tok/s", " pass · 3 tokens", "The texts are identical.", "Close", "Keep")
        assert "\x1b" not in chat.text
        await chat.pilot.press("escape")


def greedy() -> ReplyOptions:
    return ReplyOptions(sampling=SamplingSettings(temperature=0.0))
