"""Real models under a real limit on the engine's address space: whatever fails, the target answers and says why."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specchat.engine.policy import Mode, Speculation
from specchat.engine.replies import ReplyOptions
from specchat.engine.sampling import SamplingSettings
from specchat.session import Launch, Reply, Session
from specchat.units import MIB
from specchat.worker.client import EngineError
from specchat.worker.protocol import Fault, LoadSettings
from tests.conftest import DemoPair

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no such limit")

GREEDY = ReplyOptions(SamplingSettings(temperature=0.0), max_tokens=8)
# MiB beyond what the process had: the target needs some 250 with this context, both models 520.
ENOUGH_FOR_THE_TARGET, ENOUGH_FOR_BOTH = 290, 900


@pytest.fixture
def limited(demo_pair: DemoPair, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Session]]:
    """Sessions of the demo pair whose engines may map so many MiB."""
    monkeypatch.setenv("SPECCHAT_ENGINE", "tests.limited_engine:load_engine")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    opened: list[Session] = []

    def open_session(room: int, *, blind: bool) -> Session:
        monkeypatch.setenv("SPECCHAT_TEST_ROOM", str(room * MIB))
        monkeypatch.setenv("SPECCHAT_TEST_BLIND", "1" if blind else "")
        settings = LoadSettings(n_ctx=2048, threads=1)
        session = Session(Launch("demo", demo_pair.target, demo_pair.draft, settings=settings, options=GREEDY))
        opened.append(session)
        return session

    yield open_session
    for session in opened:
        session.close()


def ask(session: Session) -> Reply:
    reply = Reply()
    for event in session.send("Count to three."):
        reply.add(event)
    return reply


@pytest.mark.parametrize("room", [ENOUGH_FOR_THE_TARGET, 425, 470, 500, ENOUGH_FOR_BOTH])
def test_an_estimate_that_is_wrong_ends_in_an_answer_all_the_same(limited: Callable[..., Session], room: int) -> None:
    """The plan believes in plenty: weights, cache, graph or first pass of the draft fail in turn, one by an abort."""
    session = limited(room, blind=True)
    reply = ask(session)
    assert reply.answer
    assert session.info is not None
    assert session.info.n_ctx == 2048
    if room == ENOUGH_FOR_BOTH:
        assert session.info.draft is not None
    if room <= 470:
        assert session.info.draft is None
    assert (session.info.draft is None) == ("memory" in session.info.draft_obstacle)


def test_the_draft_comes_back_without_a_restart_once_there_is_room(limited: Callable[..., Session]) -> None:
    session = limited(ENOUGH_FOR_THE_TARGET, blind=True)
    before = ask(session).answer
    assert session.info is not None
    assert session.info.draft is None
    pid = session._client.pid
    session.set_speculation(Speculation(Mode.DRAFT, 3))
    session.messages = ()
    assert ask(session).answer == before
    assert session.info.draft is not None
    assert session._client.pid == pid


def test_a_plan_that_sees_the_limit_steps_down_before_anything_fails(limited: Callable[..., Session]) -> None:
    session = limited(550, blind=False)
    assert ask(session).answer
    assert session.info is not None
    assert session.info.draft is None
    assert "too little memory" in session.info.draft_obstacle
    assert "ulimit" in "\n".join(session.info.plan)


def test_too_little_for_the_target_says_how_much_is_missing(limited: Callable[..., Session]) -> None:
    session = limited(200, blind=False)
    with pytest.raises(EngineError, match=r"needs .* more memory") as raised:
        ask(session)
    assert raised.value.fault is Fault.MEMORY


def test_too_little_for_the_target_without_warning_is_a_sentence_too(limited: Callable[..., Session]) -> None:
    session = limited(60, blind=True)
    with pytest.raises(EngineError, match="not enough memory to load"):
        ask(session)
