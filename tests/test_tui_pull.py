"""Fetching a pair while chatting: the real download code against a hub on loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from specchat.engine.costs import Costs
from specchat.engine.policy import AdaptivePolicy, Speculation
from specchat.engine.rounds import Origin, Round
from specchat.tui.screens.pairs import PairsScreen
from tests.fakehub import FakeHub
from tests.promptly import promptly
from tests.pulling import REPO, duo_hub, knows_duo
from tests.scripted_client import ScriptedClient, until
from tests.tui import Chat, chatting

SIZE = 600_000


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with duo_hub(SIZE) as hub:
        yield hub


@pytest.fixture(autouse=True)
def home(hub: FakeHub, specchat_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    knows_duo(specchat_home, hub, monkeypatch, 'description = "for [b] tests"\n')
    return specchat_home


def parts(home: Path) -> int:
    return sum(part.stat().st_size for part in (home / "models" / REPO).glob("*.part"))


async def pulled(chat: Chat) -> None:
    await chat.until(lambda: chat.screen.pull is None, 30)


async def test_a_pair_comes_while_the_chat_goes_on(hub: FakeHub, home: Path) -> None:
    hub.knobs.pace = SIZE / 2
    gate = threading.Event()
    client = ScriptedClient(until(gate, "beginning", " and end"))
    async with chatting(client) as chat:
        await chat.say("/pull duo")
        await chat.say("hi", wait=False)
        await chat.shows("beginning", "Fetching duo", "target.gguf", "/pull stop")
        await chat.until(lambda: "1.2 MB" in chat.text and "/s" in chat.text, 20)
        gate.set()
        await chat.shows("beginning and end")
        assert client.disturbed == [True]
        hub.knobs.pace = None
        await pulled(chat)
        await chat.shows("duo is ready: /model duo loads it.")
        assert client.disturbed == [True, False]
    assert (home / "models" / REPO / "target.gguf").stat().st_size == SIZE


async def test_stopping_ends_it_promptly_and_keeps_what_came(hub: FakeHub, home: Path) -> None:
    hub.knobs.stall_after = 200_000
    async with chatting() as chat:
        await chat.say("/pull duo")
        await chat.until(lambda: parts(home) == 400_000, 20)
        await chat.say("/pull duo")
        assert "/pull stop ends that" in chat.note
        chat.box.clear()
        with promptly():
            await chat.say("/pull stop")
            await pulled(chat)
        assert "goes on from there" in chat.note
        assert parts(home) == 400_000
        await chat.say("/pull stop")
        assert "Nothing is being fetched" in chat.note


async def test_leaving_the_chat_ends_the_pull(hub: FakeHub) -> None:
    hub.knobs.stall_after = 200_000
    async with chatting() as chat:
        await chat.say("/pull duo")
        pull = chat.screen.pull
        assert pull is not None
        await chat.app.action_quit()
        assert pull.stream.join(5)


async def test_a_failure_is_the_sentence_of_the_download(hub: FakeHub) -> None:
    hub.knobs.gated_for = set()
    async with chatting(size=(120, 40)) as chat:
        await chat.say("/pull duo")
        await pulled(chat)
        await chat.shows("is gated")
        assert chat.client.disturbed == [True, False]


async def test_an_unknown_pair_is_refused_in_place() -> None:
    async with chatting() as chat:
        await chat.say("/pull dou")
        assert "duo" in chat.note
        assert chat.box.text == "/pull dou"


@pytest.mark.parametrize("size", [(160, 50), (80, 24), (60, 20)])
async def test_the_list_proposes_and_fetches(size: tuple[int, int], home: Path) -> None:
    async with chatting(size=size) as chat:
        await chat.say("/pull")
        await chat.until(lambda: isinstance(chat.app.screen, PairsScreen))
        await chat.until(lambda: "free" in chat.text and "Proposed" in chat.text, 30)
        await chat.pilot.press("end")
        await chat.shows("duo", "for [b] tests")
        await chat.pilot.press("enter")
        await chat.until(lambda: (home / "models" / REPO / "draft.gguf").exists(), 30)
        await pulled(chat)


def test_clocks_are_not_learned_from_while_disturbed() -> None:
    def slow(policy: AdaptivePolicy) -> float:
        for _ in range(8):
            policy.choose({})
            policy.record(Round((1,), (Origin.PLAIN,), "plain", 0, 0, 0, 0.0, 9.0, 9.0, 1))
        return policy.costs.target.seconds(1)

    policy = AdaptivePolicy(Speculation(), Costs({1: 1.0, 2: 1.5}, {}, measured=True))
    policy.disturbed = True
    assert slow(policy) == pytest.approx(1.0)
    policy.disturbed = False
    assert slow(policy) > 1.2
