"""Sees that this checkout has its environment, then starts specchat or its tests.

Contract: `python bootstrap.py run|test|test-long|test-offload [--backend NAME] [ARGS]`, on Python 3.11 or newer and its
standard library alone. What it says of the set-up goes to standard error, so that the program's own output stays clean.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from environment import Checkout, prepare
from machine import BACKENDS, SetupError, look_around
from watch import say

HELP = {
    "run": """Usage: scripts/run [--backend NAME] [ARGS]

Makes the environment and fetches the demo model on first use, then starts `specchat ARGS`.
specchat's own help: scripts/run -- --help""",
    "test": """Usage: scripts/test [--backend NAME] [PYTEST-ARGS]

Makes the environment on first use, with the test tools. Without arguments: ruff check, ruff format --check, mypy
and pytest (in a few processes), and the exit status is 1 if any of them fails; with arguments: `pytest PYTEST-ARGS`
alone.""",
    "test-long": """Usage: scripts/test-long [--backend NAME] [PYTEST-ARGS]

Runs the soaks and full statistical grids of tests/long.""",
    "test-offload": """Usage: scripts/test-offload [PYTEST-ARGS]

Runs tests/offload: models on a device with a real memory limit, served over loopback by llama.cpp's RPC engine. That
needs a llama.cpp built with it, in an environment of its own (.venv-rpc): some five minutes of compiling, once.""",
}
OPTIONS = """
  --backend NAME  what llama.cpp is compiled for: cpu, cuda, metal, vulkan or rocm (also: SPECCHAT_BACKEND=NAME);
                  left out: as it is, and at first the best that this machine has the toolkit for
  -h, --help      this text
  --              ends these options"""
LINT = (("ruff check", ["ruff", "check", "."]), ("ruff format", ["ruff", "format", "--check", "."]), ("mypy", ["mypy"]))
# A test file stays in one process, so that its models are made once. A third of the time tests wait, for a screen or an
# engine: one process more than there are cores; but more than four crowd a laptop's memory.
SUITE = ["pytest", "-n", str(min(4, (os.cpu_count() or 1) + 1)), "--dist", "loadfile"]


@dataclass(frozen=True, slots=True)
class Options:
    backend: str | None
    help: bool
    rest: list[str]  # for specchat or pytest


def parse(arguments: Sequence[str], backend: str | None) -> Options:
    """Takes the options of these scripts from the front. `backend`: unless one is given. SetupError for a bad one."""
    rest = list(arguments)
    helping = False
    while rest:
        match rest:
            case ["-h" | "--help", *others]:
                helping = True
            case ["--backend", name, *others]:
                backend = name
            case [option, *others] if option.startswith("--backend="):
                backend = option.partition("=")[2]
            case ["--backend"]:
                raise SetupError(f"--backend needs a name: {', '.join(BACKENDS)}.")
            case ["--", *others]:
                return Options(known(backend), helping, others)
            case _:
                break
        rest = others
    return Options(known(backend), helping, rest)


def known(backend: str | None) -> str | None:
    if backend and backend not in BACKENDS:
        raise SetupError(f"There is no backend {backend!r}; there are {', '.join(BACKENDS)}.")
    return backend or None


def run(place: Checkout, options: Options) -> int:
    first = place.read_stamp() is None
    prepare(place, options.backend, test=False)
    fetch_demo(place)
    if first:
        say(path_hint(place.specchat, Path.home(), os.environ.get("PATH", "")))
    os.execv(place.specchat, ["specchat", *options.rest])


def path_hint(specchat: Path, home: Path, path: str) -> str:
    """How to start specchat from anywhere."""
    folder = home / ".local" / "bin"
    hint = f"To start it from anywhere: mkdir -p {folder} && ln -sf {shlex.quote(str(specchat))} {folder}/specchat"
    if str(folder) in path.split(os.pathsep):
        return hint
    return f'{hint}\nand put that folder on the PATH, in your shell\'s profile: export PATH="{folder}:$PATH"'


def fetch_demo(place: Checkout) -> None:
    """Fetches the demo model once. Without it specchat still starts, and other models may be there."""
    stamp = place.read_stamp()
    if stamp is None or stamp.demo:
        return
    if subprocess.run([place.specchat, "pull", "demo"], stdout=sys.stderr, check=False).returncode:
        say("The demo model is not there yet; the next scripts/run tries again.")
    else:
        place.write_stamp(replace(stamp, demo=True))


def test(place: Checkout, options: Options) -> int:
    prepare(place, options.backend, test=True)
    tmux = shutil.which("tmux") is not None
    if not tmux:
        say(f"The tests of the screen need what is not here: {look_around().missing('tmux')}.")
    if options.rest:
        return timed(place, "pytest", ["pytest", *options.rest])
    if not tmux:
        return 1
    steps = [timed(place, name, command) for name, command in (*LINT, ("pytest", SUITE))]
    return int(any(steps))


def test_long(place: Checkout, options: Options) -> int:
    prepare(place, options.backend, test=True)
    return timed(place, "pytest", ["pytest", "tests/long", *options.rest])


def test_offload(place: Checkout, options: Options) -> int:
    """The RPC engine is no backend to choose but an addition to one: a flag, and an environment of its own."""
    apart = Apart(place.root)
    apart.build.mkdir(parents=True, exist_ok=True)
    os.environ["CMAKE_ARGS"] = " ".join(filter(None, [os.environ.get("CMAKE_ARGS"), "-DGGML_RPC=ON"]))
    prepare(apart, options.backend or "cpu", test=True)
    return timed(apart, "pytest", ["pytest", "tests/offload", *options.rest])


class Apart(Checkout):
    """The same clone with another environment."""

    @property
    def venv(self) -> Path:
        return self.root / ".venv-rpc"

    @property
    def build(self) -> Path:
        return self.root / "build" / "rpc"


def timed(place: Checkout, name: str, command: Sequence[str]) -> int:
    """Runs one of the test tools, its output passed through; says how it ended and how long it took."""
    print(f"== {name}", flush=True)
    started = time.monotonic()
    process = subprocess.Popen([place.python, "-m", *command], cwd=place.root)
    try:
        status = process.wait()
    except KeyboardInterrupt:
        process.wait()  # it got the same Ctrl+C, and has a summary to print
        raise
    ending = "ok" if status == 0 else f"failed with exit status {status}"
    print(f"== {name}: {ending}, {time.monotonic() - started:.1f} s", flush=True)
    return status


def main(arguments: Sequence[str]) -> int:
    commands = {"run": run, "test": test, "test-long": test_long, "test-offload": test_offload}
    place = Checkout(Path(__file__).resolve().parent.parent)
    name, *rest = arguments
    try:
        options = parse(rest, os.environ.get("SPECCHAT_BACKEND"))
        if options.help:
            print(HELP[name] + "\n" + OPTIONS)
            return 0
        return commands[name](place, options)
    except SetupError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("Stopped.")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
