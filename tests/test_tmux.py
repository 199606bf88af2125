"""specchat in a real terminal with the real demo pair: what a newcomer sees, and how it leaves."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from time import sleep

import pytest

from tests.conftest import DemoPair
from tests.terminal import Terminal, all_gone, engine_of, kill, terminal

QUESTION = "What is the sea? Tell me in a few sentences."
# Greedily the demo pair's target tells it without end (4,000 tokens and still at it); sampled, it may end after 80
# tokens, before the test comes to what it does in the middle of a reply.
STORY = "Tell me a very long story."
LENGTH = "60"  # tokens: enough to press keys in, whatever else the machine is doing


@pytest.fixture
def home(tmp_path: Path, demo_pair: DemoPair) -> Path:
    """A home in which the demo pair is there already, on one thread: two of them crawl where others are at work."""
    (tmp_path / "models").symlink_to(demo_pair.library.models)
    (tmp_path / "verified").symlink_to(demo_pair.library.records)
    (tmp_path / "settings.toml").write_text("threads = 1\n")
    return tmp_path


@pytest.mark.parametrize("size", [(200, 50), (80, 24)])
def test_a_newcomer_asks_switches_speculation_within_the_reply_and_leaves(size: tuple[int, int], home: Path) -> None:
    with terminal(size, SPECCHAT_HOME=str(home)) as tmux:
        tmux.start("--speculation", "ngram", "--temp", "0", "--max-tokens", LENGTH)
        tmux.wait_for("This is the demo pair")
        tmux.wait_for("8,192")
        tmux.type(QUESTION)
        tmux.keys("Enter")
        tmux.wait_for(lambda text: re.search(r"● .*tok/s", text))
        tmux.keys("F2")
        tmux.wait_for(lambda text: re.search(r"● plain \(off\).*tok/s", text))
        tmux.keys("C-t")
        tmux.wait_for(lambda text: "plain (off)" not in text and re.search(r"[●○] .*tok/s", text))
        tmux.wait_for(lambda text: re.search(r"○ .*tok/s", text))
        assert tmux.text.lower().split(QUESTION.lower())[1].count("sea") or "ocean" in tmux.text.lower()
        everyone = tmux.processes()
        tmux.keys("C-q")
        assert tmux.ended_clean() == 0
        assert all_gone(everyone)


def begin_a_story(tmux: Terminal) -> None:
    tmux.start("--speculation", "off", "--temp", "0")
    tmux.wait_for("8,192")
    ask_for_a_story(tmux)


def ask_for_a_story(tmux: Terminal) -> None:
    """Answers in the middle of the reply."""
    tmux.type(STORY)
    tmux.keys("Enter")
    tmux.wait_for(lambda text: re.search(r"● plain.*tok/s", text))


def test_esc_stops_a_reply_and_ctrl_d_leaves(home: Path) -> None:
    with terminal((80, 24), SPECCHAT_HOME=str(home)) as tmux:
        begin_a_story(tmux)
        tmux.keys("Escape")
        tmux.wait_for("stopped")
        tmux.type("x")
        tmux.keys("BSpace")
        tmux.keys("C-d")
        assert tmux.ended_clean() == 0


def test_the_engines_death_is_explained_and_the_next_message_starts_another(home: Path) -> None:
    with terminal((100, 30), SPECCHAT_HOME=str(home)) as tmux:
        begin_a_story(tmux)
        kill(engine_of(tmux.processes()), signal.SIGKILL)
        tmux.wait_for(lambda text: "interrupted" in text and "log" in text)
        ask_for_a_story(tmux)
        tmux.keys("C-q")
        assert tmux.ended_clean() == 0


def test_sigterm_in_the_middle_of_a_reply_leaves_a_clean_terminal(home: Path) -> None:
    with terminal(SPECCHAT_HOME=str(home)) as tmux:
        begin_a_story(tmux)
        everyone = tmux.processes()
        kill(everyone[0], signal.SIGTERM)
        assert tmux.ended_clean() == 128 + signal.SIGTERM
        assert all_gone(everyone)


def test_a_closed_terminal_ends_specchat_and_its_engine(home: Path) -> None:
    with terminal(SPECCHAT_HOME=str(home)) as tmux:
        tmux.start()
        tmux.wait_for("8,192")
        everyone = tmux.processes()
        assert engine_of(everyone)
        tmux.hang_up()
        assert all_gone(everyone)


def test_after_kill_9_question_partial_reply_and_unsent_text_are_there_again(home: Path) -> None:
    with terminal((80, 24), SPECCHAT_HOME=str(home)) as tmux:
        begin_a_story(tmux)
        tmux.type("half a thought")
        tmux.wait_for("half a thought")
        sleep(2)  # what is written about twice a second is on disk by now
        everyone = tmux.processes()
        kill(everyone[0], signal.SIGKILL)
        assert all_gone(everyone)
    with terminal((200, 50), SPECCHAT_HOME=str(home)) as tmux:
        tmux.start("--continue")
        seen = ("half a thought", "8,192", STORY, "stopped")
        tmux.wait_for(lambda text: all(part in text for part in seen))
        tmux.keys("C-c")
        tmux.type("Stop there.")
        tmux.keys("Enter")
        tmux.wait_for(lambda text: re.search(r"[●○] .*tok/s", text))  # a short answer may have ended by now
        tmux.keys("C-q")
        assert tmux.ended_clean() == 0
        assert re.search(r"^specchat --resume \w+$", tmux.text, re.MULTILINE)
        assert STORY in tmux.text


def test_a_broken_model_is_said_on_the_screen_and_on_leaving(home: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF but no more than that")
    with terminal(SPECCHAT_HOME=str(home)) as tmux:
        tmux.start("-m", str(broken))
        tmux.wait_for("broken.gguf")
        tmux.wait_for("▌")
        tmux.keys("C-q")
        assert tmux.ended_clean() != 0
        assert "broken.gguf" in tmux.text
