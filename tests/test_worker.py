"""The engine's process, run for real with a scripted engine inside it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import psutil
import pytest

from specchat import locations
from specchat.engine.policy import Mode, Speculation
from specchat.engine.replies import Event, Finished, Generated, Message, Reading, ReplyOptions
from specchat.worker import autopsy
from specchat.worker import client as client_module
from specchat.worker.client import Client, EngineClosed, EngineDied, EngineError, EngineKilled
from specchat.worker.protocol import Fault, Loading, LoadSettings
from tests import scripted_engine
from tests.promptly import promptly

TARGET = Path("target.gguf")


@pytest.fixture(autouse=True)
def _scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(locations.HOME_VARIABLE, str(tmp_path))
    scripted_engine.use(monkeypatch)


@pytest.fixture
def client() -> Iterator[Client]:
    made = Client()
    yield made
    made.close()


@pytest.fixture
def loaded(client: Client) -> Client:
    load(client)
    return client


def load(client: Client, target: Path = TARGET, draft: Path | None = None, required: bool = False) -> list[Loading]:
    return list(client.load(target, draft, LoadSettings(), draft_required=required))


def stream(client: Client, script: str) -> Iterator[Event]:
    return client.reply([Message("user", script)], ReplyOptions())


def text(events: list[Event]) -> str:
    return "".join(piece.text for event in events if isinstance(event, Generated) for piece in event.pieces)


def soon(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Whether the condition comes true within that time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def pid_of(client: Client) -> int:
    assert client.pid is not None
    return client.pid


def log_text() -> str:
    return "".join(path.read_text() for path in locations.logs_dir().glob("*.log"))


# ---- streaming


def test_a_reply_arrives_round_by_round_and_ends_with_finished(loaded: Client) -> None:
    events = list(stream(loaded, "the quick brown fox"))
    assert text(events) == "the quick brown fox"
    assert [type(event) for event in events].count(Finished) == 1
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "end"
    assert events[-1].figures.tokens == 4


def test_loading_reports_progress_and_what_was_loaded(client: Client) -> None:
    progress = load(client, draft=Path("draft.gguf"))
    assert [p.stage for p in progress] == ["starting the engine", "loading the target", "loading the target"]
    assert client.info is not None
    assert (client.info.target.name, client.info.draft and client.info.draft.name) == ("target.gguf", "draft.gguf")


def test_what_the_engine_prints_goes_to_the_log_and_never_into_the_stream(
    loaded: Client, capfd: pytest.CaptureFixture[str]
) -> None:
    assert text(list(stream(loaded, "one !noise=100000 two"))) == "one two"
    assert capfd.readouterr() == ("", "")
    loaded.close()
    assert log_text().count("1") >= 100_000
    assert log_text().count("2") >= 100_000


def test_a_long_prompt_and_a_long_reply_pass(loaded: Client) -> None:
    words = "word " * 5000  # more than a pipe holds, in both directions
    assert text(list(stream(loaded, words))).split() == words.split()[: scripted_engine.N_CTX - 5000]


def test_counting_works_while_idle_and_in_the_middle_of_a_reply(loaded: Client) -> None:
    assert loaded.count("one two three") == 3
    reply = stream(loaded, "!pause=0.01 word !again")
    next(reply)
    counted: list[int] = []
    thread = threading.Thread(target=lambda: counted.append(loaded.count("a b")))
    thread.start()
    while thread.is_alive():
        next(reply)
    assert counted == [2]


# ---- cancelling and switching


def test_cancel_ends_an_endless_reply_and_the_next_one_is_whole(loaded: Client) -> None:
    reply = stream(loaded, "!pause=0.005 word !again")
    first = next(reply)
    assert isinstance(first, Generated)
    loaded.cancel()
    rest = list(reply)
    assert isinstance(rest[-1], Finished)
    assert rest[-1].reason == "cancelled"
    assert rest[-1].figures.tokens == sum(len(e.round.tokens) for e in [first, *rest] if isinstance(e, Generated))
    assert text(list(stream(loaded, "still here"))) == "still here"


def test_cancel_acts_while_the_prompt_is_being_read(loaded: Client) -> None:
    reply = stream(loaded, "!pause=0.01 !reading=1000000 never")
    assert isinstance(next(reply), Reading)
    loaded.cancel()
    rest = list(reply)
    assert len(rest) < 100
    assert isinstance(rest[-1], Finished)


def test_abandoning_a_reply_cancels_it(loaded: Client) -> None:
    reply = stream(loaded, "!pause=0.005 word !again")
    next(reply)
    del reply
    assert text(list(stream(loaded, "next"))) == "next"


def test_speculation_switches_within_the_same_reply_both_ways(loaded: Client) -> None:
    reply = stream(loaded, "!pause=0.005 some words for ever !again")
    drafters: list[str] = []

    def read_until(drafter: str) -> None:
        while not drafters or drafters[-1] != drafter:
            event = next(reply)
            assert isinstance(event, Generated)
            drafters.append(event.round.drafter)

    read_until("ngram")  # auto without a draft model
    loaded.set_speculation(Speculation(Mode.OFF))
    read_until("plain")
    loaded.set_speculation(Speculation(Mode.NGRAM, depth=2))
    read_until("ngram")


def test_a_switch_while_loading_holds_for_the_first_reply(client: Client) -> None:
    for _ in client.load(TARGET, None, LoadSettings()):
        client.set_speculation(Speculation(Mode.OFF))
    events = list(stream(client, "all plain here"))
    assert {e.round.drafter for e in events if isinstance(e, Generated)} == {"plain"}


# ---- failures the process survives


@pytest.mark.parametrize(
    ("script", "sentence", "fault"),
    [
        ("one !fail=the_prompt_is_too_long", "the prompt is too long", Fault.INPUT),
        ("one !bug", "internal error in the engine (ValueError: scripted bug)", Fault.INTERNAL),
    ],
)
def test_an_error_in_a_reply_is_one_sentence_and_the_process_lives_on(
    loaded: Client, script: str, sentence: str, fault: Fault
) -> None:
    before = loaded.pid
    arrived: list[Event] = []
    with pytest.raises(EngineError, match=re.escape(sentence)) as caught:
        arrived.extend(stream(loaded, script))  # keeps what came before the error
    assert text(arrived) == "one "
    assert caught.value.fault is fault
    assert text(list(stream(loaded, "still here"))) == "still here"
    assert loaded.pid == before
    assert ("Traceback" in log_text()) == (fault is Fault.INTERNAL)


def test_a_load_that_fails_leaves_a_process_that_can_load_something_else(client: Client) -> None:
    with pytest.raises(EngineError, match=r"bad\.gguf is not a GGUF file"):
        load(client, Path("bad.gguf"))
    assert client.info is None
    before = client.pid
    with pytest.raises(EngineError, match="no model is loaded"):
        list(stream(client, "hello"))
    load(client)
    assert client.pid == before
    assert text(list(stream(client, "hello"))) == "hello"


def test_an_engine_that_cannot_be_imported_is_a_failed_load(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECCHAT_ENGINE", "tests.no_such_module:load")
    with pytest.raises(EngineError, match="ModuleNotFoundError") as caught:
        load(client)
    assert not isinstance(caught.value, EngineDied)


def test_without_a_process_everything_says_so(client: Client) -> None:
    with pytest.raises(EngineError, match="not running"):
        list(stream(client, "hello"))
    with pytest.raises(EngineError, match="not running"):
        client.count("hello")
    client.cancel()
    client.set_speculation(Speculation())


# ---- deaths


@pytest.mark.parametrize(
    ("script", "how", "memory"),
    [("!die=SIGKILL", "SIGKILL", True), ("!die=SIGSEGV", "SIGSEGV", False), ("!die=SIGABRT", "SIGABRT", False),
     ("!exit=3", "status 3", False)],
)  # fmt: skip
def test_a_death_in_mid_reply_keeps_what_came_and_another_engine_can_be_loaded(
    loaded: Client, script: str, how: str, memory: bool
) -> None:
    before = loaded.pid
    arrived: list[Event] = []
    with pytest.raises(EngineDied, match=how) as caught:
        arrived.extend(stream(loaded, f"one two three four five {script} six"))  # keeps what came before the error
    assert text(arrived) == "one two three four five "
    assert caught.value.memory_suspected == memory
    assert str(caught.value.log) in str(caught.value)
    assert caught.value.log.is_file()
    assert loaded.info is None
    assert loaded.pid is None
    load(loaded)
    assert loaded.pid != before
    assert text(list(stream(loaded, "back again"))) == "back again"


def test_a_death_while_loading_is_told(client: Client) -> None:
    with pytest.raises(EngineDied, match="SIGKILL"):
        load(client, Path("deadly.gguf"))


def test_a_death_that_nobody_waits_for_is_told_once_and_one_that_somebody_hears_of_is_not(loaded: Client) -> None:
    told: SimpleQueue[EngineDied] = SimpleQueue()
    loaded.on_death = told.put
    os.kill(pid_of(loaded), signal.SIGKILL)
    death = told.get(timeout=10)
    assert death.memory_suspected
    assert "SIGKILL" in str(death)
    load(loaded)
    with pytest.raises(EngineDied):
        list(stream(loaded, "!die=SIGKILL"))
    load(loaded)
    loaded.close()
    assert told.empty()


def test_a_death_while_idle_is_noticed_at_once(loaded: Client) -> None:
    os.kill(pid_of(loaded), signal.SIGKILL)
    assert soon(lambda: loaded.info is None)
    with pytest.raises(EngineDied):
        list(stream(loaded, "hello"))
    with pytest.raises(EngineDied):
        loaded.count("hello")


def test_a_crash_leaves_a_python_traceback_in_the_log(loaded: Client) -> None:
    with pytest.raises(EngineDied):
        list(stream(loaded, "!die=SIGSEGV"))
    assert "Segmentation fault" in log_text()
    assert "scripted_engine.py" in log_text()


def test_ctrl_c_in_the_terminal_is_not_the_engines_business(loaded: Client) -> None:
    reply = stream(loaded, "!pause=0.01 a b c d e f g h")
    first = next(reply)
    os.kill(pid_of(loaded), signal.SIGINT)
    assert text([first, *reply]) == "a b c d e f g h"


# ---- endings


def test_close_ends_the_process_and_whoever_waits_is_told(loaded: Client) -> None:
    pid = pid_of(loaded)
    errors: list[EngineError] = []

    def wait() -> None:
        try:
            list(stream(loaded, "!pause=0.01 word !again"))
        except EngineError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    with promptly():
        loaded.close()
        thread.join(5)
    assert gone(pid)
    assert not thread.is_alive()
    assert [type(error) for error in errors] == [EngineClosed]


def test_close_kills_a_process_that_does_not_answer(loaded: Client) -> None:
    pid = pid_of(loaded)
    os.kill(pid, signal.SIGSTOP)
    with promptly():
        loaded.close()
    assert gone(pid)


HANGS = ["!die=SIGSTOP", "!hang=60"]


@pytest.mark.parametrize("hang", HANGS)
def test_an_engine_that_hangs_hears_no_cancel_and_can_be_killed_at_once(loaded: Client, hang: str) -> None:
    before = pid_of(loaded)
    arrived: list[Event] = []
    errors: list[EngineError] = []

    def read() -> None:
        try:
            arrived.extend(stream(loaded, f"one two three four five {hang} six"))
        except EngineError as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    assert soon(lambda: text(arrived) == "one two three four five ")
    loaded.cancel()
    thread.join(0.3)
    assert thread.is_alive()
    with promptly():
        loaded.kill()
        thread.join(5)
    assert [type(error) for error in errors] == [EngineKilled]
    assert "you ended" in str(errors[0])
    assert gone(before)
    load(loaded)
    assert text(list(stream(loaded, "back again"))) == "back again"


def test_an_engine_that_was_killed_did_not_crash(loaded: Client) -> None:
    told: SimpleQueue[EngineDied] = SimpleQueue()
    loaded.on_death = told.put
    loaded.kill()
    time.sleep(0.1)
    assert told.empty()
    loaded.kill()  # there is none
    assert not list(locations.logs_dir().glob("crash-*.log"))


def test_an_engine_that_reads_nothing_keeps_nobody_waiting(loaded: Client) -> None:
    def read() -> None:
        with pytest.raises(EngineClosed):
            list(stream(loaded, "word " * 100_000))  # more than a pipe holds

    os.kill(pid_of(loaded), signal.SIGSTOP)
    reply = threading.Thread(target=read)
    reply.start()
    time.sleep(0.2)
    with promptly():
        for _ in range(3):
            loaded.cancel()
            loaded.set_speculation(Speculation(Mode.OFF))
            loaded.answer_now()
        loaded.close()
    reply.join(5)
    assert not reply.is_alive()


def test_closing_a_load_ends_the_process(client: Client) -> None:
    progress = client.load(Path("slow.gguf"), None, LoadSettings())
    next(progress)
    pid = pid_of(client)
    progress.close()
    assert gone(pid)
    load(client)
    assert text(list(stream(client, "hello"))) == "hello"


PARENT = """
import sys, time
from pathlib import Path
from specchat.engine.replies import Message, ReplyOptions
from specchat.worker.client import Client
from specchat.worker.protocol import LoadSettings
client = Client()
list(client.load(Path(sys.argv[1]), None, LoadSettings()))
print(client.pid, flush=True)
for event in client.reply([Message("user", sys.argv[2])], ReplyOptions()):
    pass
time.sleep(60)
"""


@pytest.mark.parametrize("script", ["idle", "!pause=0.01 word !again", "!pause=30 word"])
def test_when_the_parent_is_killed_the_child_ends_within_a_second(script: str) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(TARGET), script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout as stdout:
        child = int(stdout.readline())
        time.sleep(0.1)
        assert not gone(child)
        parent.kill()
        parent.wait()
        assert soon(lambda: gone(child), 1.0)


def test_only_the_latest_logs_are_kept_and_nothing_else_is_left_on_disk(client: Client, tmp_path: Path) -> None:
    folder = locations.logs_dir()
    folder.mkdir(parents=True)
    old = [folder / f"engine-20200101-00000{n}-1.log" for n in range(8)]
    for path in old:
        path.touch()
    load(client)
    client.close()
    files = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert len(files) == 5
    assert files >= set(old[-4:])


def test_the_log_that_a_crash_names_stays_whatever_comes_after_it(loaded: Client) -> None:
    with pytest.raises(EngineDied) as caught:
        list(stream(loaded, "!die=SIGSEGV"))
    for _ in range(7):
        load(loaded)
        loaded.close()
    assert locations.tilde(caught.value.log) in str(caught.value)
    assert "Segmentation fault" in caught.value.log.read_text()
    for _ in range(7):
        load(loaded)
        with pytest.raises(EngineDied):
            list(stream(loaded, "!exit=3"))
    assert len(list(locations.logs_dir().iterdir())) <= 10


def test_the_log_of_an_engine_that_runs_stays_while_others_come_and_go(loaded: Client) -> None:
    other = Client()
    for _ in range(7):
        load(other)
        other.close()
    with pytest.raises(EngineDied) as caught:
        list(stream(loaded, "!die=SIGSEGV"))
    assert "Segmentation fault" in caught.value.log.read_text()


def test_a_log_that_grew_too_long_is_started_anew(loaded: Client) -> None:
    list(stream(loaded, "!noise=5000000 one"))
    list(stream(loaded, "!noise=10 two"))
    assert len(log_text()) < 100


def test_an_engine_starts_without_a_folder_for_its_log(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(locations.HOME_VARIABLE, str(tmp_path / "file"))
    load(client)
    assert text(list(stream(client, "hello"))) == "hello"


def test_a_module_in_the_current_folder_does_not_shadow_the_engines(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "numpy.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    load(client)


def test_a_message_torn_by_death_ends_the_waiting(loaded: Client) -> None:
    with pytest.raises(EngineDied, match="status 7"):
        list(stream(loaded, "one !torn=7"))


def test_a_child_that_stops_talking_without_dying_is_ended(loaded: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_DYING", 0.2)
    pid = pid_of(loaded)
    with pytest.raises(EngineDied, match="stopped answering") as caught:
        list(stream(loaded, "one !mute"))
    assert not caught.value.memory_suspected
    assert gone(pid)


# ---- the autopsy


def test_an_allocation_failure_in_the_log_means_memory(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("x" * 100_000 + "\nterminate called after throwing an instance of 'std::bad_alloc'\n")
    finding = autopsy.examine(-signal.SIGABRT, autopsy.oom_kills(), log)
    assert finding.memory_suspected
    assert "SIGABRT because memory ran out" in finding.sentence


def test_the_kernels_own_count_of_kills_means_memory(tmp_path: Path) -> None:
    finding = autopsy.examine(-signal.SIGKILL, autopsy.oom_kills() - 1, tmp_path / "none.log")
    assert "SIGKILL because memory ran out" in finding.sentence


def test_a_plain_crash_does_not_blame_memory(tmp_path: Path) -> None:
    finding = autopsy.examine(-signal.SIGSEGV, autopsy.oom_kills(), tmp_path / "none.log")
    assert not finding.memory_suspected
    assert "memory" not in finding.sentence


def test_pythons_own_report_of_a_crash_does_not_hide_the_cause(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    report = "Fatal Python error: Aborted\n\n" + "  File x in y\n" * 500
    log.write_text(f"ggml_aligned_malloc: insufficient memory (attempted to allocate 39 MB)\n{report}")
    assert autopsy.examine(-signal.SIGABRT, autopsy.oom_kills(), log).memory_suspected
    log.write_text(f"failed to allocate\n{'loaded without it' * 500}\n{report}")
    assert not autopsy.examine(-signal.SIGABRT, autopsy.oom_kills(), log).memory_suspected


def test_another_machine_that_went_away_is_named_as_the_cause(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("Remote RPC server crashed or returned malformed response\nFatal Python error: Aborted\n")
    finding = autopsy.examine(-signal.SIGABRT, autopsy.oom_kills(), log)
    assert "--rpc" in finding.sentence
    assert not finding.memory_suspected


def test_a_windows_status_is_written_the_way_people_look_it_up(tmp_path: Path) -> None:
    assert "0xc0000005" in autopsy.examine(0xC0000005, autopsy.oom_kills(), tmp_path / "none.log").sentence


def test_no_log_is_named_where_there_is_none(tmp_path: Path) -> None:
    assert "log" not in autopsy.examine(3, autopsy.oom_kills(), tmp_path / "none.log").sentence


# ---- arrows


def test_the_parents_side_loads_neither_llama_cpp_nor_textual() -> None:
    code = "import specchat.session, sys; print([m for m in ('llama_cpp', 'textual') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_reasoning_is_ended_from_outside(loaded: Client) -> None:
    events = loaded.reply((Message("user", "!think !pause=0.01 hm !again !answer Yes"),), ReplyOptions())
    seen = [next(events)]
    loaded.answer_now()
    seen += events
    pieces = [piece for event in seen if isinstance(event, Generated) for piece in event.pieces]

    assert "".join(piece.text for piece in pieces if not piece.reasoning) == "Yes"
    # Of a reply that is over nothing is left to be ended.
    loaded.answer_now()
    events = loaded.reply((Message("user", "!think hm ha !answer Yes"),), ReplyOptions())
    pieces = [piece for event in events if isinstance(event, Generated) for piece in event.pieces]
    assert "".join(piece.text for piece in pieces) == "hm ha Yes"
