"""`specchat ask`, from the command line down: a scripted engine in a real process, then the real demo pair."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from specchat import locations, state
from specchat.cli import main
from specchat.commands import report
from specchat.engine.stats import Figures
from specchat.history import Conversation, Store
from tests import ggufs, scripted_engine
from tests.conftest import DemoPair
from tests.promptly import promptly
from tests.terminal import all_gone, descendants, engine_of, on_terminal

ROOT = Path(__file__).parents[1]


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A file whose engine is scripted."""
    scripted_engine.use(monkeypatch)
    path = tmp_path / "target.gguf"
    path.write_bytes(b"GGUF")
    return str(path)


def ask(*arguments: str, stdin: bytes | str | None = None) -> Result:
    """Run `specchat ask` in this process."""
    return CliRunner().invoke(main, ["ask", *arguments], input=stdin, prog_name="specchat")


def start(*arguments: str) -> subprocess.Popen[str]:
    """Start `specchat ask` as a program, its standard output and error piped."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", "specchat", "ask", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def one_sentence(result: Result, *words: str) -> None:
    """The program failed, and said why in one line without a traceback."""
    assert result.exit_code == 1
    assert result.stderr.startswith("specchat: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


# ---- standard output and error


def test_the_reply_and_a_newline_are_all_that_is_printed(target: str) -> None:
    result = ask("-m", target, "hello", "there")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "hello there\n", "")


def test_piped_text_comes_before_the_question(target: str) -> None:
    assert ask("-m", target, "question", stdin="piped\ntext\n").stdout == "piped text question\n"
    assert ask("-m", target, stdin="only piped").stdout == "only piped\n"


def test_files_come_before_both_and_bear_their_names_where_there_are_several(target: str, tmp_path: Path) -> None:
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_bytes(b"\xef\xbb\xbfuno\r\n")  # a byte-order mark and Windows' line ends
    two.write_text("due")
    assert ask("-m", target, "-f", str(one), "question", stdin="piped").stdout == "uno piped question\n"
    both = ask("-m", target, "-f", str(one), "--file", str(two), "question").stdout
    assert both == "one.txt: uno two.txt: due question\n"


@pytest.mark.parametrize("content", [b"GGUF\0\0\0", b"\xff\xfe\x00x", b"latin \xe9"])
def test_binary_files_and_binary_input_are_refused(target: str, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "picture"
    path.write_bytes(content)
    one_sentence(ask("-m", target, "-f", str(path), "question"), str(path))
    one_sentence(ask("-m", target, "question", stdin=content), "standard input")


def test_a_missing_text_file_is_one_sentence(target: str) -> None:
    one_sentence(ask("-m", target, "-f", "none.txt", "question"), "no file none.txt")


@pytest.mark.parametrize(("arguments", "stdin"), [((), ""), ((" ",), None), ((), " \n\n"), (("-f", "empty"), "\n")])
def test_without_anything_to_ask_it_says_how(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], stdin: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").write_text(" \n")
    result = ask("-m", target, *arguments, stdin=stdin)
    assert result.exit_code == 2
    assert "specchat ask" in result.stderr
    assert result.stdout == ""


def test_statistics_go_to_standard_error(target: str) -> None:
    result = ask("-m", target, "--stats", "--depth", "2", "one two three four five six")
    assert result.stdout == "one two three four five six\n"
    lines = dict(line.split(maxsplit=1) for line in result.stderr.splitlines())
    assert "(6 tokens in" in lines["speed"]
    assert lines["accepted"] == "100% (4 of 4 tested; 4 proposed)"
    assert lines["drafter"] == "ngram at depth 2"


def test_statistics_of_one_token_are_those_of_one() -> None:
    one = Figures(tokens=1, passes=1, tokens_per_second=5.0, tokens_per_pass=1.0, seconds=0.2)
    assert "(1 token in 0.20 s)" in report.lines(one)[0]
    assert any("(1 pass)" in line for line in report.lines(one))


def test_json_is_one_object_that_holds_everything(target: str, tmp_path: Path) -> None:
    draft = tmp_path / "draft.gguf"
    draft.touch()
    result = ask("-m", target, "-md", str(draft), "--json", "!notice=by_the_way !think hm !answer forty two")
    assert result.exit_code == 0
    assert result.stdout.count("\n") == 1
    said = json.loads(result.stdout)
    assert (said["reply"], said["reasoning"], said["finish"], said["error"]) == ("forty two", "hm ", "end", "")
    assert (said["target"], said["draft"], said["notices"]) == ("target.gguf", "draft.gguf", ["by the way"])
    assert (said["target_file"], said["draft_file"]) == ("target.gguf", "draft.gguf")
    figures = said["figures"]
    assert figures["tokens"] == 3
    assert figures["acceptance"] == figures["accepted"] / figures["tested"]


def test_speed_over_plain_speed_is_the_speed_up(target: str) -> None:
    # A slow beginning and a quick end: the last seconds are unlike the average.
    script = "!pause=0.1 " + "slow " * 24 + "!pause=0.001 " + "quick " * 400
    result = ask("-m", target, "--depth", "1", "--stats", "--json", script)
    speed = float(re.findall(r"speed +([\d.]+) tokens/s", result.stderr)[0])
    speed_up, plain = map(float, re.findall(r"speed-up +([\d.]+) x plain \(([\d.]+) ", result.stderr)[0])
    assert speed_up == pytest.approx(speed / plain, rel=0.05, abs=0.01)
    figures = json.loads(result.stdout)["figures"]
    assert figures["tokens_per_second_now"] > 1.1 * figures["tokens_per_second"]
    plain = figures["plain_tokens_per_second"]
    assert figures["speed_up"] == pytest.approx(figures["tokens_per_second"] / plain)
    assert figures["speed_up_now"] == pytest.approx(figures["tokens_per_second_now"] / plain)


def test_reasoning_is_not_part_of_the_reply(target: str) -> None:
    result = ask("-m", target, "!think let me see !answer forty two")
    assert (result.stdout, result.stderr) == ("forty two\n", "")


def test_a_draft_model_that_was_asked_for_and_is_not_there_is_said(target: str) -> None:
    result = ask("-m", target, "--speculation", "draft", "hello")
    assert (result.exit_code, result.stdout) == (0, "hello\n")
    assert result.stderr == "specchat: target.gguf has no draft model: the reply is plain\n"
    assert ask("-m", target, "--speculation", "ngram", "hello").stderr == ""


def test_notices_go_to_standard_error(target: str) -> None:
    result = ask("-m", target, "!notice=ChatML_is_used hello")
    assert (result.stdout, result.stderr) == ("hello\n", "specchat: ChatML is used\n")


def test_a_full_context_is_said(target: str) -> None:
    result = ask("-m", target, "-c", "256", "word !again")
    assert result.exit_code == 0
    assert len(result.stdout.split()) == 254
    assert "context of 256 tokens is full" in result.stderr


def test_max_tokens_ends_the_reply(target: str) -> None:
    assert ask("-m", target, "-n", "3", "a b c d e").stdout == "a b c \n"


# ---- ends


def test_a_closed_pipe_ends_silently(target: str) -> None:
    program = start("-m", target, "!pause=0.005 word !again")
    assert program.stdout is not None
    assert program.stdout.read(4) == "word"
    program.stdout.close()
    assert program.stderr is not None
    with program.stderr as stderr:
        assert stderr.read() == ""
    assert program.wait(10) == 141


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_standard_stream_that_is_closed_keeps_nothing_from_working(target: str, closed: int) -> None:
    command = [sys.executable, "-m", "specchat", "ask", "-m", target, "hello"]
    result = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}>&-', "sh", *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "" if closed == 1 else "hello\n", "")


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_output_that_cannot_be_written_is_one_sentence(target: str, tmp_path: Path, options: tuple[str, ...]) -> None:
    unwritable = tmp_path / "output"
    unwritable.touch()
    with unwritable.open("rb") as output:
        result = subprocess.run(
            [sys.executable, "-m", "specchat", "ask", "-m", target, *options, "hello"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            check=False,
        )
    assert result.returncode == 1
    assert result.stderr.startswith("specchat: ")
    assert result.stderr.count("\n") == 1


def interrupt(program: subprocess.Popen[str]) -> tuple[str, str]:
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=10)
    assert program.returncode == 130
    return out, err


def test_ctrl_c_leaves_the_partial_reply(target: str) -> None:
    program = start("-m", target, "--stats", "!pause=0.005 word !again")
    assert program.stdout is not None
    # Past the file object's buffer: what that holds back, `communicate` would never see.
    first = os.read(program.stdout.fileno(), 5).decode()
    out, err = interrupt(program)
    assert set((first + out).split()) == {"word"}
    assert out.endswith("\n")
    assert "Traceback" not in err
    assert "tokens/s" in err


def test_ctrl_c_with_json_leaves_an_object(target: str) -> None:
    program = start("-m", target, "--json", "!pause=0.005 word !notice=running word !again")
    assert program.stderr is not None
    assert program.stderr.readline() == "specchat: running\n"
    out, _ = interrupt(program)
    assert json.loads(out)["finish"] == ""
    assert json.loads(out)["reply"].startswith("word ")


@pytest.mark.parametrize("presses", [1, 2])
@pytest.mark.parametrize("hang", ["!die=SIGSTOP", "!hang=60"])
def test_ctrl_c_leaves_an_engine_that_hangs_and_none_of_it_stays_behind(target: str, hang: str, presses: int) -> None:
    program = start("-m", target, f"one two three four five {hang} six")
    assert program.stdout is not None
    first = os.read(program.stdout.fileno(), 1000).decode()
    engine = engine_of(descendants(program.pid))
    time.sleep(0.2)
    for _ in range(presses - 1):
        program.send_signal(signal.SIGINT)
        time.sleep(0.2)  # while it waits for the engine to end by itself
    with promptly():
        out, err = interrupt(program)
    assert (first + out).strip() in ("one two three four", "one two three four five")
    assert "Traceback" not in err
    assert all_gone([engine], 1.0)


@pytest.mark.usefixtures("target")
def test_ctrl_c_while_loading(tmp_path: Path) -> None:
    slow = tmp_path / "slow.gguf"
    slow.touch()
    program = start("-m", str(slow), "hello")
    end = time.monotonic() + 20
    while not any(locations.logs_dir().glob("engine-*.log")):
        assert time.monotonic() < end
        time.sleep(0.02)
    assert interrupt(program) == ("", "")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("one two !fail=the_model_is_tired", "the model is tired"),
        ("one two !bug", "internal error"),
        ("one two !die=SIGSEGV", "SIGSEGV"),
    ],
)
def test_a_failure_keeps_what_came_and_is_one_sentence(target: str, script: str, said: str) -> None:
    result = ask("-m", target, script)
    one_sentence(result, said)
    assert result.stdout == "one two \n"
    whole = ask("-m", target, "--json", script)
    one_sentence(whole, said)
    assert said in json.loads(whole.stdout)["error"]


def test_a_message_too_long_for_the_context_has_the_command_lines_remedy(target: str) -> None:
    result = ask("-m", target, "!long=9000")
    one_sentence(result, "9,000 tokens and the context 4,096: shorten it or ask for a longer one (-c)")
    assert result.stdout == ""


@pytest.mark.usefixtures("target")
def test_a_failed_load_is_one_sentence(tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.touch()
    one_sentence(ask("-m", str(bad), "hello"), "not a GGUF file")


# ---- on a terminal


def test_on_a_terminal_progress_is_shown_and_gone_before_the_reply(target: str) -> None:
    status, sent = on_terminal("-m", target, "!reading=1200 hello")
    assert status == 0
    assert "loading the target: 50%" in sent
    assert "reading 1,200 of 1,200 tokens" in sent
    assert sent.endswith("\r\x1b[Khello\n")


def test_on_a_terminal_reasoning_is_shown_dimmed(target: str) -> None:
    _, sent = on_terminal("-m", target, "!think hm !answer yes")
    assert "\x1b[2mhm \x1b[0m\n\nyes\n" in sent


def test_a_model_cannot_control_the_terminal(target: str) -> None:
    _, sent = on_terminal("-m", target, "a\x1b[31mred\x07\x9b2J !notice=\x1b]0;title\x07x")
    progress = re.compile(r"\r[^\r\x1b]*\x1b\[K")
    assert progress.sub("", sent) == "ared2J specchat: x\n\n"


# ---- which models, and how


def own_pair(folder: Path, target: str, draft: str, extra: str = "") -> None:
    """An entry of the user's own catalogue whose files are there."""
    for name in (target, draft):
        (folder / name).write_bytes(b"GGUF")
    locations.user_catalog_file().parent.mkdir(parents=True, exist_ok=True)
    locations.user_catalog_file().write_text(
        f'[files.t]\npath = "{folder / target}"\n[files.d]\npath = "{folder / draft}"\n'
        f'[pairs.duo]\ntarget = "t"\ndraft = "d"\n{extra}'
    )


@pytest.mark.usefixtures("target")
def test_a_pair_is_opened_by_name_and_becomes_the_usual_one(tmp_path: Path) -> None:
    own_pair(tmp_path, "big.gguf", "small.gguf")
    said = json.loads(ask("--pair", "duo", "--json", "hello").stdout)
    assert (said["pair"], said["target"], said["draft"]) == ("duo", "big.gguf", "small.gguf")
    assert state.load().last_opened == "duo"
    assert json.loads(ask("--json", "hello").stdout)["pair"] == "duo"


@pytest.mark.usefixtures("target")
def test_a_pairs_draft_that_does_not_fit_is_left_out_with_the_reason(tmp_path: Path) -> None:
    own_pair(tmp_path, "big.gguf", "bad-draft.gguf")
    result = ask("--pair", "duo", "hello")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "hello\n", "specchat: its vocabulary differs\n")


def test_a_draft_that_was_named_and_does_not_fit_is_an_error(target: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad-draft.gguf"
    bad.touch()
    for mode in ("auto", "draft", "ngram", "off"):
        result = ask("-m", target, "-md", str(bad), "--speculation", mode, "hello")
        one_sentence(result, "vocabulary differs")
        assert result.stdout == ""


@pytest.mark.parametrize(("mode", "draft"), [("auto", True), ("draft", True), ("ngram", False), ("off", False)])
@pytest.mark.usefixtures("target")
def test_a_draft_that_cannot_be_used_is_not_loaded(tmp_path: Path, mode: str, draft: bool) -> None:
    own_pair(tmp_path, "big.gguf", "small.gguf")
    said = json.loads(ask("--pair", "duo", "--speculation", mode, "--json", "hello").stdout)
    assert (said["draft"] is not None) == draft
    assert said["speculation"] == mode


def test_an_unknown_pair_is_one_sentence_with_a_suggestion() -> None:
    one_sentence(ask("--pair", "demmo", "hello"), "no pair called demmo", "demo")


# ---- the real thing


def demo(demo_pair: DemoPair, *arguments: str) -> list[str]:
    # One thread: where several are spinning for cores that others use too, a token takes a second.
    return ["-m", str(demo_pair.target), "-md", str(demo_pair.draft), "-t", "1", *arguments]


def test_the_same_text_with_every_kind_of_speculation(demo_pair: DemoPair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    replies = {
        mode: ask(*demo(demo_pair, "--temp", "0", "-n", "60", "--speculation", mode), "Write a haiku about the sea")
        for mode in ("draft", "ngram", "off")
    }
    assert {result.exit_code for result in replies.values()} == {0}
    texts = {result.stdout for result in replies.values()}
    assert len(texts) == 1
    assert re.search("sea|ocean", texts.pop())


def bad_inputs(tmp_path: Path, demo_pair: DemoPair) -> dict[str, Sequence[str]]:
    text = tmp_path / "long.txt"
    text.write_text("many words " * 400)
    no_gguf = tmp_path / "no.gguf"
    no_gguf.write_text("once upon a time")
    other = ggufs.write(tmp_path / "other.gguf")
    short = ggufs.truncated(tmp_path / "short.gguf", demo_pair.target, 50_000_000)
    target, draft = str(demo_pair.target), str(demo_pair.draft)
    return {
        "there is no file": ["-m", str(tmp_path / "none.gguf")],
        "is not a GGUF file": ["-m", str(no_gguf)],
        "incomplete or damaged": ["-m", str(short)],
        "cannot draft for": ["-m", target, "-md", str(other)],
        "short.gguf is incomplete": ["-m", target, "-md", str(short)],
        "is a folder": ["-m", str(tmp_path)],
        "the context 256": ["-m", target, "-md", draft, "-c", "256", "-f", str(text)],
    }


def test_bad_input_ends_in_one_clear_sentence(
    demo_pair: DemoPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for sentence, arguments in bad_inputs(tmp_path, demo_pair).items():
        result = ask(*arguments, "-t", "1", "hello")
        one_sentence(result, sentence)
        assert result.stdout == ""


# ---- going on with a conversation


@pytest.fixture
def last() -> Iterator[tuple[Store, Conversation]]:
    """A conversation of one turn, with something unsent in its box, held with a file."""
    with Store(locations.history_file()) as store:
        talk = store.create(pair="gone", system_prompt="Be brief.")
        turn = store.send(talk.id, "first question", after=None)
        store.finish(store.begin_reply(turn.message.id).id, content="first answer")
        store.keep_unsent(talk.id, "half a tho")
        yield store, store.conversation(talk.id)


def test_the_last_conversation_is_gone_on_with(target: str, last: tuple[Store, Conversation]) -> None:
    store, talk = last
    result = ask("-C", "-m", target, "--stats", "second question")
    assert (result.exit_code, result.stdout) == (0, "second question\n")
    # The scripted engine counts words: the system prompt's, the first turn's, the new question's.
    assert "8" in next(line for line in result.stderr.splitlines() if "rompt" in line)
    talk = store.conversation(talk.id)
    assert [message.content for message in store.path(talk.leaf)] == [
        "first question",
        "first answer",
        "second question",
        "second question",
    ]
    assert store.path(talk.leaf)[-1].state == "complete"
    assert store.path(talk.leaf)[-1].figures["tokens"] == 2
    assert talk.unsent == "half a tho"


def test_a_conversation_that_goes_on_elsewhere_becomes_two_branches(
    target: str, last: tuple[Store, Conversation]
) -> None:
    store, talk = last
    question = store.send(talk.id, "asked in a window", after=talk.leaf).message
    growing = store.begin_reply(question.id)
    store.append_to(growing.id, "half an ans")
    result = ask("--continue", "-m", target, "second question")
    assert (result.exit_code, result.stdout) == (0, "second question\n")
    assert "a branch of its own" in result.stderr
    store.finish(growing.id)
    assert [message.content for message in store.path(growing.id)][-2:] == ["asked in a window", "half an ans"]
    shown = store.path(store.conversation(talk.id).leaf)
    assert [message.content for message in shown[1:]] == ["first answer", "second question", "second question"]
    assert store.send(talk.id, "next in the window", after=talk.leaf).forked  # and the window will say so


def test_a_reply_that_fails_is_kept_as_far_as_it_came(target: str, last: tuple[Store, Conversation]) -> None:
    store, talk = last
    result = ask("-C", "-m", target, "some words !fail=enough")
    assert result.exit_code == 1
    reply = store.path(store.conversation(talk.id).leaf)[-1]
    assert (reply.content, reply.state) == ("some words ", "failed")


def test_there_must_be_a_conversation_to_go_on_with(target: str) -> None:
    one_sentence(ask("-C", "-m", target, "hello"), "no conversation to go on with")
