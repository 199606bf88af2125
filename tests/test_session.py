"""One conversation with one engine: what is remembered, whatever ends a reply."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import psutil
import pytest

from specchat import state
from specchat.engine.policy import Mode, Speculation
from specchat.engine.replies import Event, Finished, Generated, Message, Notice
from specchat.engine.rounds import Origin
from specchat.engine.stats import Figures
from specchat.engine.text import Piece
from specchat.idle import Idle
from specchat.session import Attachment, Launch, Reply, Session, SessionEvent, compose
from specchat.worker.client import EngineClosed, EngineDied, EngineError
from specchat.worker.protocol import Loading
from tests import scripted_client, scripted_engine
from tests.scripted_client import ScriptedClient


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """A session on a real engine process that runs the scripted engine."""
    scripted_engine.use(monkeypatch)
    made = Session(Launch("duo", Path("target.gguf"), Path("draft.gguf")))
    yield made
    made.close()


def kinds(events: Sequence[SessionEvent]) -> list[type]:
    return [type(event) for event in events]


def last(events: Sequence[SessionEvent]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


# ---- history


def test_turns_and_replies_are_remembered_in_order(session: Session) -> None:
    list(session.send("first words"))
    list(session.send("second words"))
    turns = [(message.role, message.content) for message in session.messages]
    assert turns == [(role, text) for text in ("first words", "second words") for role in ("user", "assistant")]


def test_the_engine_gets_system_prompt_history_and_new_turn() -> None:
    client = ScriptedClient()
    session = scripted_client.session(client, system_prompt="Be brief.")
    list(session.send("one"))
    session.system_prompt = ""
    list(session.send("two"))
    reply = Message("assistant", "Hello there.")
    assert client.asked == [
        (Message("system", "Be brief."), Message("user", "one")),
        (Message("user", "one"), reply, Message("user", "two")),
    ]


def test_options_hold_from_the_next_reply_on() -> None:
    client = ScriptedClient()
    session = scripted_client.session(client)
    list(session.send("one"))
    session.options = replace(session.options, max_tokens=7)
    list(session.send("two"))
    assert [options.max_tokens for options in client.options] == [None, 7]


def test_shortening_the_history_edits_an_earlier_turn(session: Session) -> None:
    list(session.send("mistake"))
    session.messages = session.messages[:-2]
    list(session.send("better"))
    assert [message.content for message in session.messages] == ["better", "better"]


def test_reasoning_is_kept_apart_from_the_answer(session: Session) -> None:
    list(session.send("!think hm well !answer forty two"))
    assert session.messages[-1] == Message("assistant", "forty two", "hm well ")


def test_a_stopped_reply_keeps_what_came(session: Session) -> None:
    events = []
    for event in session.send("!pause=0.005 word !again"):
        events.append(event)
        if isinstance(event, Generated) and event.figures.tokens == 3:
            session.stop()
    assert last(events).reason == "cancelled"
    content = session.messages[-1].content
    assert content.split() == ["word"] * last(events).figures.tokens


def test_closing_the_generator_keeps_what_came_and_frees_the_engine(session: Session) -> None:
    events = session.send("!pause=0.005 word !again")
    while not isinstance(next(events), Generated):
        pass
    events.close()
    assert session.messages[-1].content == "word "
    list(session.send("next"))
    assert session.messages[-1].content == "next"


@pytest.mark.parametrize("script", ["one two !fail=no", "one two !bug", "one two !die=SIGKILL"])
def test_an_error_after_some_text_keeps_the_turn_and_the_partial_reply(session: Session, script: str) -> None:
    with pytest.raises(EngineError):
        list(session.send(script))
    assert [message.content for message in session.messages] == [script, "one two "]


def test_an_error_before_any_text_leaves_the_history_as_it_was(session: Session) -> None:
    list(session.send("hello"))
    before = session.messages
    with pytest.raises(EngineError, match="too long"):
        list(session.send("!fail=too_long"))
    assert session.messages == before


# ---- the engine wakes, dies, and comes back


def test_sending_wakes_the_engine(session: Session) -> None:
    assert session.info is None
    events = list(session.send("hello"))
    assert isinstance(events[0], Loading)
    assert session.info is not None
    assert not any(isinstance(event, Loading) for event in session.send("again"))


def test_after_a_death_the_next_message_starts_another_engine_and_the_conversation_goes_on(session: Session) -> None:
    list(session.send("hello"))
    with pytest.raises(EngineDied):
        list(session.send("one !die=SIGSEGV"))
    events = list(session.send("back"))
    assert isinstance(events[0], Loading)
    assert len(session.messages) == 6


def test_close_gives_the_memory_back_and_a_message_wakes_another_engine(session: Session) -> None:
    list(session.send("hello"))
    session.close()
    assert session.info is None
    living = [p for p in psutil.Process().children() if p.status() != psutil.STATUS_ZOMBIE]
    assert not [p for p in living if "specchat.worker.process" in p.cmdline()]
    list(session.send("again"))
    assert session.messages[-1].content == "again"


def test_a_failed_load_is_raised_kept_and_forgotten_once_one_succeeds(session: Session) -> None:
    good = session.launch
    session.launch = replace(good, target=Path("bad.gguf"))
    with pytest.raises(EngineError, match="not a GGUF file"):
        list(session.send("hello"))
    assert session.messages == ()
    assert "not a GGUF file" in str(session.failure)
    session.launch = good
    list(session.load())
    assert session.failure is None


def test_what_was_loaded_is_remembered_for_the_next_start_and_a_failure_is_not(session: Session) -> None:
    session.launch = replace(session.launch, record="duo")
    list(session.load())
    assert state.load().last_opened == "duo"
    session.launch = replace(session.launch, record="other", target=Path("bad.gguf"))
    with pytest.raises(EngineError):
        list(session.load())
    assert state.load().last_opened == "duo"


def test_closing_while_the_engine_loads_is_no_failure(session: Session) -> None:
    session.launch = replace(session.launch, target=Path("slow.gguf"))
    loading = session.load()
    next(loading)
    threading.Timer(0.1, session.close).start()
    with pytest.raises(EngineClosed):
        list(loading)
    assert session.failure is None


# ---- stopping


def test_stop_while_the_engine_wakes_ends_the_reply_and_the_process(session: Session) -> None:
    session.launch = replace(session.launch, target=Path("slow.gguf"))
    events = []
    for event in session.send("hello"):
        events.append(event)
        session.stop()
    assert kinds(events)[-1] is Finished
    assert len(events) < 50
    assert session.messages == ()
    assert session.info is None


def test_stop_right_after_send_is_not_lost(session: Session) -> None:
    list(session.load())
    events = session.send("word !again")
    session.stop()
    assert last(list(events)).reason == "cancelled"


def test_an_old_stop_does_not_touch_the_next_message(session: Session) -> None:
    list(session.send("hello"))
    session.stop()
    assert last(list(session.send("whole reply here"))).reason == "end"
    assert session.messages[-1].content == "whole reply here"


def test_stop_from_another_thread(session: Session) -> None:
    list(session.load())
    events = session.send("!pause=0.005 word !again")
    next(events)
    threading.Timer(0.05, session.stop).start()
    assert last(list(events)).reason == "cancelled"


# ---- speculation


def test_the_speculation_asked_for_survives_the_engines_death(session: Session) -> None:
    session.set_speculation(Speculation(Mode.OFF))
    events = list(session.send("one two"))
    assert {e.round.drafter for e in events if isinstance(e, Generated)} == {"plain"}
    with pytest.raises(EngineDied):
        list(session.send("!die=SIGKILL"))
    events = list(session.send("one two"))
    assert {e.round.drafter for e in events if isinstance(e, Generated)} == {"plain"}
    assert session.speculation == Speculation(Mode.OFF)


def test_tokens_are_counted_by_the_engine(session: Session) -> None:
    with pytest.raises(EngineError, match="not running"):
        session.count_tokens("a b c")
    list(session.load())
    assert session.count_tokens("a b c") == 3


# ---- attachments and folding


@pytest.mark.parametrize(
    ("attachments", "text", "message"),
    [
        ((), "question", "question"),
        ((Attachment("a.txt", "\nbody\n"),), "question", "body\n\nquestion"),
        ((Attachment("a.txt", "body"),), "", "body"),
        (
            (Attachment("a.txt", "one"), Attachment("b.txt", "two")),
            "question",
            "a.txt:\none\n\nb.txt:\ntwo\n\nquestion",
        ),
    ],
)
def test_attachments_come_before_the_text(attachments: tuple[Attachment, ...], text: str, message: str) -> None:
    assert compose(attachments, text) == message


def test_attachments_go_out_once_and_are_kept_if_nothing_came(session: Session) -> None:
    session.attachments = (Attachment("a.txt", "!pause=0"),)
    with pytest.raises(EngineError):
        list(session.send("!fail=no"))
    list(session.send("hello"))
    list(session.send("again"))
    assert [m.content for m in session.messages if m.role == "user"] == ["!pause=0\n\nhello", "again"]


def test_a_reply_is_the_sum_of_its_pieces() -> None:
    def piece(text: str, reasoning: bool = False) -> Piece:
        return Piece(text, Origin.PLAIN, reasoning)

    generated = scripted_client.generated("x", Figures(tokens=1))
    events: list[Event] = [
        Notice("by the way"),
        replace(generated, pieces=(piece("think", True), piece("say "))),
        replace(generated, pieces=()),
        Finished("stop", Figures(tokens=2), (piece("more"),)),
    ]
    reply = Reply()
    for event in events:
        reply.add(event)
    assert reply.message == Message("assistant", "say more", "think")
    assert (reply.finish, reply.figures.tokens, reply.notices) == ("stop", 2, ["by the way"])


# ---- memory


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Session]]:
    """Sessions over real processes with the scripted engine in them."""
    scripted_engine.use(monkeypatch)
    made: list[Session] = []

    def make(target: str, draft: str | None = None, idle_seconds: float = 0.0) -> Session:
        launch = Launch("pair", Path(target), Path(draft) if draft else None, idle_seconds=idle_seconds)
        made.append(Session(launch))
        return made[-1]

    yield make
    for session in made:
        session.close()


def answer(events: Iterable[SessionEvent]) -> Reply:
    reply = Reply()
    for event in events:
        reply.add(event)
    return reply


def test_an_engine_that_dies_for_memory_while_loading_is_started_again_further_down(
    scripted: Callable[..., Session],
) -> None:
    session = scripted("heavy.gguf", "draft.gguf")
    stages = [loading.stage for loading in session.load()]
    assert sum("SIGKILL" in stage and "starting it again" in stage for stage in stages) == 2
    assert session.info is not None
    assert session.info.steps_down == 2
    assert session.failure is None
    assert answer(session.send("still here")).answer == "still here"


def test_the_third_death_while_loading_stops_the_retries(scripted: Callable[..., Session]) -> None:
    session = scripted("deadly.gguf")
    stages: list[str] = []
    with pytest.raises(EngineDied, match="SIGKILL"):
        stages.extend(loading.stage for loading in session.load())
    assert sum("starting it again" in stage for stage in stages) == 2
    assert isinstance(session.failure, EngineDied)


@pytest.mark.parametrize(("name", "steps"), [("SIGKILL", 1), ("SIGSEGV", 0)])
def test_after_a_death_in_mid_reply_the_engine_comes_back_lower_only_if_memory_was_the_cause(
    scripted: Callable[..., Session], name: str, steps: int
) -> None:
    session = scripted("target.gguf", "draft.gguf")
    with pytest.raises(EngineDied, match=name):
        answer(session.send(f"one two !die={name}"))
    assert session.messages[-1].content.startswith("one two")
    assert answer(session.send("three")).answer == "three"
    assert session.info is not None
    assert session.info.steps_down == steps
    assert (session.info.draft is None) == bool(steps)


@pytest.mark.parametrize(("number", "steps"), [(signal.SIGKILL, 1), (signal.SIGSEGV, 0)])
def test_a_death_while_nobody_waits_is_told_and_the_engine_comes_back_lower_if_memory_was_the_cause(
    scripted: Callable[..., Session], number: signal.Signals, steps: int
) -> None:
    session = scripted("target.gguf", "draft.gguf")
    told: SimpleQueue[EngineDied] = SimpleQueue()
    session.on_death = told.put
    assert answer(session.send("one")).answer == "one"
    assert session._client.pid is not None
    os.kill(session._client.pid, number)
    assert number.name in str(told.get(timeout=10))
    assert answer(session.send("two")).answer == "two"
    assert session.info is not None
    assert session.info.steps_down == steps


def test_asking_for_the_draft_brings_it_back_into_the_running_engine(scripted: Callable[..., Session]) -> None:
    session = scripted("target.gguf", "large.gguf")
    answer(session.send("one"))
    assert session.info is not None
    assert "not enough memory" in session.info.draft_obstacle
    pid = session._client.pid
    session.set_speculation(Speculation(Mode.DRAFT))
    events = list(session.send("two"))
    assert [event.stage for event in events if isinstance(event, Loading)] == ["loading the draft"]
    assert answer(events).answer == "two"
    assert session.info.draft is not None
    assert session._client.pid == pid
    assert not [event for event in session.send("three") if isinstance(event, Loading)]


@pytest.mark.parametrize(("failure", "obstacle"), [("", "memory ran short"), ("=it-failed", "it-failed")])
def test_a_draft_that_was_released_is_gone_from_what_is_loaded(
    scripted: Callable[..., Session], failure: str, obstacle: str
) -> None:
    session = scripted("target.gguf", "draft.gguf")
    reply = answer(session.send(f"one !release{failure} two"))
    assert reply.answer.split() == ["one", "two"]
    assert "released" in reply.notices[0]
    assert session.info is not None
    assert session.info.draft is None
    assert session.info.draft_obstacle.endswith(obstacle)
    assert session.info.plan[-1] == f"since then {session.info.draft_obstacle}"
    assert session.info.draft_can_return


# ---- idle


def test_an_idle_engine_gives_its_memory_back_and_the_next_message_wakes_it(scripted: Callable[..., Session]) -> None:
    session = scripted("target.gguf", "draft.gguf", idle_seconds=0.2)
    answer(session.send("one"))
    pid = session._client.pid
    assert pid is not None
    process = psutil.Process(pid)
    process.wait(timeout=10)
    assert session.info is None
    events = list(session.send("two"))
    assert isinstance(events[0], Loading)
    assert answer(events).answer == "two"
    assert [message.content for message in session.messages] == ["one", "one", "two", "two"]


def test_an_engine_that_is_loading_or_replying_is_not_idle(scripted: Callable[..., Session]) -> None:
    session = scripted("target.gguf", idle_seconds=0.1)
    assert answer(session.send("one !pause=0.3 two three four")).answer.split() == ["one", "two", "three", "four"]
    events = session.send("five")
    assert next(events) is not None
    time.sleep(0.3)  # a screen that is slow to take the next event
    assert last(list(events)).reason == "end"


def test_an_engine_stays_where_the_setting_is_0(scripted: Callable[..., Session]) -> None:
    session = scripted("target.gguf")
    answer(session.send("one"))
    assert session._idle._timer is None
    assert session.info is not None


def test_closing_stops_the_clock() -> None:
    done: list[int] = []
    idle = Idle(0.05, lambda: done.append(1))
    with idle.busy(), idle.busy():
        pass
    idle.stop()
    time.sleep(0.15)
    assert not done
    with idle.busy():
        pass
    time.sleep(0.15)
    assert done == [1]
