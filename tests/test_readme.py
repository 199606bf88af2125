"""The README is true: its commands run, what is generated in it is up to date, its links lead somewhere.

A command is a line of a fenced block marked `sh`. Its comment may begin with a mark, which a reader sees too. One that
"needs the hub", "needs a GPU", "needs RPC" or "needs minutes" is not run here; one that "opens the chat" is run in a
terminal and left.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

import pictures
import pytest

import docs
from specchat.history import Store
from tests.conftest import DemoPair
from tests.terminal import ROOT, terminal

Run: TypeAlias = Callable[[str], "subprocess.CompletedProcess[str]"]

README = (ROOT / "README.md").read_text("utf-8")
CHAT = "opens the chat"
ELSEWHERE = ("needs the hub", "needs a GPU", "needs minutes", "needs RPC")


@dataclass(frozen=True, slots=True)
class Line:
    """One command of the README, and its comment."""

    command: str
    comment: str


def lines() -> Iterator[Line]:
    """Every command, in the order of the page."""
    for block in re.findall(r"^```sh\n(.*?)^```$", README, re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            command, _, comment = line.partition("  # ")
            yield Line(command.strip(), comment.strip())


COMMANDS = tuple(lines())
SCRIPTS = [line for line in COMMANDS if line.command.startswith("scripts/")]
CHATS = [line for line in COMMANDS if line.comment.startswith(CHAT)]
RUN = [line for line in COMMANDS if line not in SCRIPTS and not line.comment.startswith((CHAT, *ELSEWHERE))]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, demo_pair: DemoPair) -> Path:
    """A user's folder with the demo pair in place, two model files of theirs, and one conversation."""
    folder = tmp_path_factory.mktemp("reader")
    specchat = folder / "specchat"
    specchat.mkdir()
    (specchat / "models").symlink_to(demo_pair.library.models)
    (specchat / "verified").symlink_to(demo_pair.library.records)
    (folder / "models").mkdir()
    (folder / "models" / "big.gguf").symlink_to(demo_pair.target)
    (folder / "models" / "small.gguf").symlink_to(demo_pair.draft)
    (folder / "notes.txt").write_text("The library opens at nine.\n")
    with Store(specchat / "history.db") as store:
        store.send(store.create().id, "What is the sea?", after=None)
    return folder


@pytest.fixture(scope="module")
def environment(home: Path) -> dict[str, str]:
    """The environment of a reader's shell, with `specchat` and `python3` on its PATH."""
    programs = home / "bin"
    programs.mkdir()
    (programs / "specchat").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m specchat "$@"\n')
    (programs / "specchat").chmod(0o755)
    (programs / "python3").symlink_to(sys.executable)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SPECCHAT_", "HF_", "XDG_"))}
    return kept | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(home),
        "SPECCHAT_HOME": str(home / "specchat"),
        "HF_HUB_OFFLINE": "1",  # what `specchat doctor` would ask
    }


def test_the_marks_are_those_that_this_file_knows_and_most_lines_run_here() -> None:
    begun = {line.comment.split(":")[0] for line in COMMANDS if line.comment.startswith(("needs", "opens"))}
    assert {mark for mark in begun if not mark.startswith((CHAT, *ELSEWHERE))} == set()
    assert len(RUN) >= 15
    assert len(CHATS) >= 4


@pytest.fixture(scope="module")
def run(home: Path, environment: dict[str, str]) -> Run:
    """Runs a command in the reader's shell, each only once."""

    @cache
    def once(command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", command],
            cwd=home,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    return once


@pytest.mark.parametrize("line", RUN, ids=lambda line: line.command)
def test_a_command_of_the_readme_runs(line: Line, run: Run) -> None:
    done = run(line.command)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout or "venv" in line.command


def test_in_exact_mode_the_greedy_text_is_the_same_with_speculation_and_without(run: Run) -> None:
    exact = [line.command for line in RUN if "--exact" in line.command]
    assert len(exact) == 2
    assert len({run(command).stdout for command in exact}) == 1


@pytest.mark.parametrize("line", SCRIPTS, ids=lambda line: line.command)
def test_a_script_of_the_readme_is_there_and_takes_these_arguments(line: Line) -> None:
    program, *arguments = shlex.split(line.command)
    own = [argument for argument in arguments if not argument.startswith("tests/")]
    done = subprocess.run([ROOT / program, *own, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert program in done.stdout
    assert all((ROOT / argument).exists() for argument in arguments if argument.startswith("tests/"))


@pytest.mark.parametrize("line", CHATS, ids=lambda line: line.command)
def test_a_command_of_the_readme_opens_the_chat(line: Line, home: Path) -> None:
    program, *arguments = shlex.split(line.command)
    if program.startswith("scripts/"):
        return  # that it answers is tested above, what it sets up in test_setup
    with terminal(SPECCHAT_HOME=str(home / "specchat")) as tmux:
        tmux.start(*arguments)
        tmux.wait_for(lambda text: "8,192" in text or "Conversations" in text)
        tmux.keys("C-q")
        assert tmux.ended_clean() == 0


def test_what_is_generated_is_up_to_date() -> None:
    assert [str(path.relative_to(ROOT)) for path in docs.outdated()] == [], "run scripts/docs"


def test_every_part_that_can_be_generated_is_in_the_readme() -> None:
    assert re.findall(r"^<!-- ([a-z-]+): made by scripts/docs -->$", README, re.MULTILINE) == [
        "pairs",
        "help",
        "slash-commands",
        "keys",
        "settings",
    ]


def shown(picture: str) -> list[str]:
    """The words of a picture, line by line."""
    return [text.replace("&#160;", " ").strip() for text in re.findall(r"<text[^>]*>([^<]*)</text>", picture)]


def test_the_pictures_show_the_screen_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECCHAT_HOME", "/nonexistent")
    drawn = pictures.draw(pictures.load(pictures.RECORDING))
    for name, picture in drawn.items():
        kept = (pictures.DOCS / f"{name}.svg").read_text("utf-8")
        assert shown(kept) == shown(picture), "run scripts/pictures"
        assert "http" not in kept.replace("http://www.w3.org/2000/svg", "").replace("https://www.textualize.io", "")


def test_links_to_files_and_headings_lead_somewhere() -> None:
    headings = {
        re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", README, re.MULTILINE)
    }
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert links
    for link in links:
        if link.startswith("#"):
            assert link[1:] in headings, link
        elif not link.startswith("https://"):
            assert (ROOT / link).exists(), link
