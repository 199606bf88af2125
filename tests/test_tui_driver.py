"""The terminal's driver: pastes are text whatever is in them, and a terminal that goes away takes the program along."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from textual import events
from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.message import Message

from specchat.escapes import without_sequences
from specchat.tui.driver import Pastes
from tests import scripted_engine
from tests.terminal import Terminal, all_gone, descendants, terminal

# Characters that make up escape sequences, keys with a meaning, and text.
_ODD = st.text(st.sampled_from("\x1b[]201~;mMOPR<u?\x00\x03\x07\x08\x11\r\n\tab é"), max_size=80)


def messages(data: str, cuts: list[int]) -> list[Message]:
    """What the application gets of `data`, read in pieces of these lengths, the rest at once."""
    parser, pastes = XTermParser(), Pastes()
    got: list[Message] = []
    for length in [*cuts, len(data)]:
        piece, data = data[:length], data[length:]
        if disarmed := pastes.disarm(piece):
            got += parser.feed(disarmed)
    return got


@given(_ODD, st.lists(st.integers(1, 9), max_size=20))
@example("\x1b[31mred\x1b[0m and so on for more than thirty characters \x11 \r", [])
@example("\x1b", [6, 1])
@example("\x1b[31mred\x1b[0m \x1b]0;title\x07\x1b(B and text", [1] * 60)
@settings(deadline=None)
def test_whatever_is_pasted_is_one_paste_and_no_key(text: str, cuts: list[int]) -> None:
    text = "x" + text.replace(BRACKETED_PASTE_END, "")
    got = messages(f"a{BRACKETED_PASTE_START}{text}{BRACKETED_PASTE_END}b", cuts)
    kinds = [type(message) for message in got]
    assert kinds == [events.Key, events.Paste, events.Key]
    pasted = got[1]
    assert isinstance(pasted, events.Paste)
    assert pasted.text == re.sub("[\x1b\x00]", "", without_sequences(text))


@given(st.lists(st.sampled_from(["a", "\x1b[A", "\x1b[200", "\x1bOP", "\r", "\x1b[<0;3;4M"]), max_size=10))
def test_outside_a_paste_nothing_is_changed(keys: list[str]) -> None:
    assert Pastes().disarm("".join(keys)) == "".join(keys)


@pytest.fixture
def target(tmp_path: Path) -> str:
    path = tmp_path / "target.gguf"
    path.write_bytes(b"GGUF")
    return str(path)


def read_until(screen: int, wanted: bytes, seconds: float = 60.0) -> None:
    """Read what is painted until `wanted` is among it."""
    painted, end = b"", time.monotonic() + seconds
    while wanted not in painted:
        assert time.monotonic() < end, painted
        if select.select([screen], [], [], 0.1)[0]:
            painted += os.read(screen, 65536)


@contextmanager
def chatting(target: str, home: Path) -> Iterator[Terminal]:
    """The chat, in the middle of a reply without an end."""
    environment = scripted_engine.environment() | {"SPECCHAT_HOME": str(home)}
    with terminal((100, 30), **environment) as tmux:
        tmux.start(target)
        tmux.wait_for("8,192")
        tmux.type("!pause=0.02 word !again")
        tmux.keys("Enter")
        tmux.wait_for("word word word")
        yield tmux


def test_a_terminal_that_is_gone_in_the_middle_of_a_reply_ends_specchat_and_its_engine(
    target: str, tmp_path: Path
) -> None:
    screen, own = os.openpty()
    fcntl.ioctl(own, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    environment = os.environ | scripted_engine.environment() | {"SPECCHAT_HOME": str(tmp_path), "TERM": "xterm"}
    # In a session without a controlling terminal: no SIGHUP comes when it is closed.
    program = subprocess.Popen(
        [sys.executable, "-m", "specchat", target],
        stdin=own,
        stdout=own,
        stderr=own,
        env=environment,
        start_new_session=True,
    )
    os.close(own)
    try:
        read_until(screen, b"8,192")
        os.write(screen, b"!pause=0.01 word !again\r")
        read_until(screen, b"tok/s")
        everyone = [program.pid, *descendants(program.pid)]
        assert len(everyone) > 1
        os.close(screen)
        assert program.wait(20) == 128 + signal.SIGHUP
        assert all_gone(everyone)
    finally:
        program.kill()
        program.wait()


def test_bytes_that_are_no_text_and_pasted_keys_end_nothing(target: str, tmp_path: Path) -> None:
    with chatting(target, tmp_path / "home") as tmux:
        tmux.keys("-H", "ff", "c3", "28")
        tmux.paste("before \x1b[31menough characters\x1b[0m to be no \x1b]0;title\x07escape sequence \x11 \x07 after")
        tmux.wait_for("before enough characters to be no escape sequence   after")
        assert tmux.alternate
        tmux.keys("C-q")
        assert tmux.ended_clean() == 0


def test_the_mouse_is_left_to_the_terminal_and_taken_back(target: str, tmp_path: Path) -> None:
    with chatting(target, tmp_path / "home") as tmux:
        assert tmux.mouse
        for command, expected in (("off", False), ("on", True), ("off", False)):
            tmux.type(f"/mouse {command}")
            tmux.keys("Enter")
            owner = "specchat's" if expected else "the terminal's"
            tmux.wait_for(f"The mouse is {owner}")
            assert tmux.mouse is expected
        tmux.keys("C-q")
        assert tmux.ended_clean() == 0


def test_the_mouse_can_be_left_to_the_terminal_from_the_beginning(target: str, tmp_path: Path) -> None:
    environment = scripted_engine.environment() | {"SPECCHAT_HOME": str(tmp_path)}
    with terminal((100, 30), **environment) as tmux:
        tmux.start(target, "--no-mouse")
        tmux.wait_for("8,192")
        assert not tmux.mouse
        tmux.keys("C-q")
        assert tmux.ended_clean() == 0
