"""A real terminal for tests: specchat in tmux, driven by keys and read back as text."""

from __future__ import annotations

import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_CHAT: Final = "from specchat.cli import main; main(prog_name='specchat')"
# What the shell is asked to print before and after: the terminal's settings must come back as they were.
_SETTINGS: Final = "stty -a | cksum"


class Terminal:
    """One tmux server with one pane, in which a shell runs specchat once."""

    def __init__(self, size: tuple[int, int], environment: dict[str, str]) -> None:
        self._socket = f"specchat-{uuid.uuid4().hex[:8]}"
        self._environment = (
            {key: value for key, value in os.environ.items() if not key.startswith(("TMUX", "SPECCHAT_", "NO_COLOR"))}
            | {"PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"}
            | environment
        )
        columns, rows = size
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(rows), "sh")

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-L", self._socket, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=self._environment, timeout=20, check=False)
        return done.stdout

    def start(self, *arguments: str) -> None:
        """Run `specchat ARGUMENTS`; the terminal's settings and the exit status are printed around it."""
        program = shlex.join([sys.executable, "-c", _CHAT, *arguments])
        self.keys(f"clear; echo before=$({_SETTINGS}); {program}; echo status=$?; echo after=$({_SETTINGS})", "Enter")

    def keys(self, *keys: str) -> None:
        """Press keys, by tmux's names; other words are typed."""
        self._tmux("send-keys", *keys)

    def type(self, text: str) -> None:
        """Type `text` and nothing else."""
        self._tmux("send-keys", "-l", text)

    def paste(self, text: str) -> None:
        """Paste `text` as a terminal does."""
        self._tmux("set-buffer", text)
        self._tmux("paste-buffer", "-p")

    @property
    def mouse(self) -> bool:
        """Whether the program has the mouse reported to it."""
        return self._tmux("display-message", "-p", "#{mouse_any_flag}").strip() == "1"

    @property
    def text(self) -> str:
        """What the screen shows."""
        return self._tmux("capture-pane", "-p")

    @property
    def status(self) -> str:
        """The status line (the last but one)."""
        lines = self.text.rstrip().splitlines()
        return lines[-2].strip() if len(lines) > 1 else ""

    @property
    def alternate(self) -> bool:
        """Whether a full-screen program has the terminal."""
        return self._tmux("display-message", "-p", "#{alternate_on}").strip() == "1"

    @property
    def cursor_visible(self) -> bool:
        """Whether the cursor is shown."""
        return self._tmux("display-message", "-p", "#{cursor_flag}").strip() == "1"

    def wait_for(self, holds: object, seconds: float = 60.0) -> str:
        """Wait until the text contains `holds`, or `holds(text)`; answers with the text. Fails with the last text."""
        end = time.monotonic() + seconds
        while True:
            text = self.text
            if holds(text) if callable(holds) else str(holds) in text:
                return text
            if time.monotonic() > end:
                raise AssertionError(f"waited in vain for {holds}; the screen:\n{text}")
            time.sleep(0.05)

    def processes(self) -> list[int]:
        """Pids of specchat and its engine: everything below the pane's shell."""
        shell = self._tmux("display-message", "-p", "#{pane_pid}").strip()
        return descendants(int(shell)) if shell else []

    def ended_clean(self) -> int:
        """Wait until specchat has ended, check that it left the terminal as it was; answers with its status."""
        text = self.wait_for(lambda text: re.search(r"^after=", text, re.MULTILINE))
        found = dict(re.findall(r"^(before|after|status)=(.+)$", text, re.MULTILINE))
        assert found["before"] == found["after"], text
        assert not self.alternate
        assert self.cursor_visible
        # Keys must be keys again: mouse reports or focus events would show up as text.
        assert not self.mouse
        return int(found["status"])

    def hang_up(self) -> None:
        """Close the terminal under the program."""
        self._tmux("kill-server")

    close = hang_up


def descendants(pid: int) -> list[int]:
    """Every living process below `pid`."""
    table = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    children: dict[int, list[int]] = {}
    for line in table.splitlines():
        child, parent = map(int, line.split())
        children.setdefault(parent, []).append(child)
    found, todo = [], [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def all_gone(pids: list[int], seconds: float = 10.0) -> bool:
    """Wait until none of `pids` runs."""
    end = time.monotonic() + seconds
    while any(alive(pid) for pid in pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def engine_of(pids: list[int]) -> int:
    """The engine's process among `pids`."""
    for pid in pids:
        if "specchat.worker.process" in Path(f"/proc/{pid}/cmdline").read_text():
            return pid
    raise AssertionError("no engine runs")


def kill(pid: int, number: signal.Signals) -> None:
    """Send a signal."""
    os.kill(pid, number)


@contextmanager
def terminal(size: tuple[int, int] = (100, 30), **environment: str) -> Iterator[Terminal]:
    """A terminal that is closed whatever happens."""
    opened = Terminal(size, environment)
    try:
        opened.wait_for(lambda text: text.strip())  # the shell's prompt
        yield opened
    finally:
        opened.close()


def on_terminal(*arguments: str) -> tuple[int, str]:
    """Exit status and everything that a terminal was sent, by a program that has one for output and error."""
    master, slave = pty.openpty()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "specchat", "ask", *arguments]
    program = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    sent = b""
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # Linux's end of file
            break
        if not chunk:
            break
        sent += chunk
    os.close(master)
    return program.wait(10), sent.decode().replace("\r\n", "\n")
