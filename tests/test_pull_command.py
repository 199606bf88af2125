"""`specchat pull` as a program: what it prints, how it ends, what it leaves; and the same behind a screen."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from specchat import probe
from specchat.cli import main
from specchat.errors import SpecchatError
from specchat.pairs.background import BackgroundPull
from specchat.pairs.progress import Phase, Plan, Progress
from specchat.units import GIB
from tests.fakehub import FakeHub, Knobs, model
from tests.promptly import promptly
from tests.pulling import ENTRY, REPO, duo_hub, knows_duo

SIZE, TOKEN = 300_000, "hf_verySecretToken"
NOTICE = 'licence_notice = "Built with [bold]care[/bold]."\n'
COMMAND = [sys.executable, "-c", "from specchat.cli import main; main(prog_name='specchat')"]


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with duo_hub(SIZE) as hub:
        yield hub


@pytest.fixture(autouse=True)
def env(hub: FakeHub, specchat_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment of the program; the home folder it works in."""
    knows_duo(specchat_home, hub, monkeypatch, NOTICE)
    return specchat_home


def specchat(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, encoding="utf-8", timeout=30, check=False)


def test_plain_lines_a_few_per_file_and_no_redrawing(env: Path) -> None:
    done = specchat("pull", "duo")
    assert (done.returncode, done.stdout) == (0, "duo is ready: specchat duo\n")
    lines = done.stderr.splitlines()
    assert "\x1b" not in done.stderr
    assert "\r" not in done.stderr
    assert lines[0] == "Built with [bold]care[/bold]."
    assert lines[1].startswith("2 files, 600 kB; ")
    assert lines[1].endswith(" free on the disk")
    for name in ("target.gguf", "draft.gguf"):
        mine = [line for line in lines if line.startswith(name)]
        assert 2 <= len(mine) <= 8
        assert mine[-1] == f"{name}: ready"
    assert (env / "models" / REPO / "target.gguf").stat().st_size == SIZE


def test_nothing_to_do_is_said_offline_without_loading_a_client(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    specchat("pull", "duo")
    hub.log.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert specchat("pull", "duo").stdout == "duo is here already: specchat duo\n"
    script = "import sys\nsys.argv[1:] = ['pull', 'duo']\nfrom specchat.cli import main\n"
    script += (
        "try:\n main()\nfinally:\n print(*(m for m in ('huggingface_hub', 'httpx2', 'llama_cpp') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, encoding="utf-8", check=False)
    assert done.stdout.splitlines()[-1] == ""
    assert not hub.log


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_gives_the_cursor_back_and_keeps_the_parts(
    env: Path, hub: FakeHub, number: signal.Signals, status: int
) -> None:
    hub.knobs.pace = SIZE / 20
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "pull", "duo"], stdout=child, stderr=child, env={**os.environ, "TERM": "xterm"}
    )
    os.close(child)
    written, sent = b"", False
    with contextlib.suppress(OSError):
        while chunk := os.read(parent, 4096):
            written += chunk
            if not sent and b"\x1b[?25l" in written and list((env / "models").rglob("*.part")):
                process.send_signal(number)
                sent = True
    os.close(parent)
    assert process.wait(20) == status
    assert written.rindex(b"\x1b[?25h") > written.rindex(b"\x1b[?25l")
    assert b"Traceback" not in written
    assert list((env / "models").rglob("*.part"))


def test_a_terminal_gets_one_redrawn_block() -> None:
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "pull", "duo"], stdout=child, stderr=child, env={**os.environ, "TERM": "xterm"}
    )
    os.close(child)
    written = b""
    with contextlib.suppress(OSError):  # what reading a closed terminal is on Linux
        while chunk := os.read(parent, 4096):
            written += chunk
    os.close(parent)
    assert process.wait(20) == 0
    assert b"\x1b[2K" in written
    assert b"in all" in written
    assert written.rstrip().endswith(b"duo is ready: specchat duo")


def test_ctrl_c_keeps_the_parts_and_says_so(env: Path, hub: FakeHub) -> None:
    hub.knobs.pace = SIZE / 20
    process = subprocess.Popen([*COMMAND, "pull", "duo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    folder = env / "models" / REPO
    end = time.monotonic() + 20
    while not any(part.stat().st_size for part in folder.glob("*.part")) and time.monotonic() < end:
        time.sleep(0.05)
    with promptly():
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"stopped: " in said
    assert b"the same command goes on from there" in said
    assert b"Traceback" not in said
    assert list(folder.glob("*.part"))
    hub.knobs.pace = None
    assert specchat("pull", "duo").returncode == 0


@pytest.mark.parametrize(
    ("variables", "knobs", "words"),
    [
        ({"HF_TOKEN": TOKEN}, Knobs(valid_tokens=set(), echo_token=True), "does not accept the token in HF_TOKEN"),
        ({"HF_TOKEN": TOKEN}, Knobs(gated_for=set()), "the token in HF_TOKEN has no access to it"),
        ({}, Knobs(gated_for=set()), "is gated: accept its terms at"),
        ({"HF_HUB_OFFLINE": "1"}, Knobs(), "unset HF_HUB_OFFLINE"),
        ({"HF_ENDPOINT": "nonsense"}, Knobs(), "'nonsense' in HF_ENDPOINT is not a web address"),
        ({}, Knobs(captive="page"), "is not a model hub"),
    ],
)
def test_failures_are_one_sentence_and_status_1(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], knobs: Knobs, words: str
) -> None:
    hub.knobs = knobs
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = specchat("pull", "duo")
    assert done.returncode == 1
    assert words in done.stderr
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("specchat: ")
    assert done.stderr.count("specchat: ") == 1
    assert TOKEN not in done.stdout + done.stderr


def test_the_token_file_is_honoured(env: Path, hub: FakeHub) -> None:
    hub.knobs.gated_for = {TOKEN}
    (env / "hf").mkdir()
    (env / "hf" / "token").write_text(TOKEN + "\n")
    done = specchat("pull", "duo")
    assert done.returncode == 0
    assert TOKEN not in done.stdout


def test_the_endpoint_is_asked_for_the_files_and_nothing_else(hub: FakeHub) -> None:
    specchat("pull", "duo")
    assert all(f"/{REPO}/resolve/" in request.path for request in hub.log)
    assert {request.headers["user-agent"].partition("/")[0] for request in hub.log} == {"specchat"}


def test_a_pair_of_ones_own_is_fetched_and_entered(env: Path, hub: FakeHub) -> None:
    hub.files["else/where", "sub/own.gguf"] = model(1000, 9)
    done = specchat(
        "pull", "--target", "hf:else/where/sub/own.gguf", "--draft", f"hf:{REPO}/draft.gguf", "--name", "mine"
    )
    assert done.returncode == 0, done.stderr
    assert (env / "models" / "else" / "where" / "sub" / "own.gguf").exists()
    assert "[pairs." in (env / "models.toml").read_text()
    assert specchat("pull", "mine").stdout == "mine is here already: specchat mine\n"


def test_a_mistyped_repository_never_becomes_an_entry(env: Path) -> None:
    done = specchat("pull", "--target", "hf:no/such/file.gguf", "--name", "mine")
    assert done.returncode == 1
    assert "no repository no/such" in done.stderr
    assert (env / "models.toml").read_text() == ENTRY + NOTICE


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpt-oss-20b", "left out of the catalogue on purpose"),
        ("qwen3-8", "did you mean qwen3-8b"),
        ("zzz", "shows the pairs"),
    ],
)
def test_names_that_are_no_pair(name: str, words: str) -> None:
    done = specchat("pull", name)
    assert done.returncode == 1
    assert words in done.stderr


def test_half_a_pair_of_ones_own_is_a_usage_error() -> None:
    assert specchat("pull", "--target", "hf:a/b/c.gguf").returncode == 2
    assert specchat("pull", "duo", "--name", "x", "--target", "hf:a/b/c.gguf").returncode == 2


def test_without_a_name_the_pairs_are_shown_and_one_is_proposed(env: Path) -> None:
    folder = env / "models" / REPO
    folder.mkdir(parents=True)
    done = specchat("pull")
    assert done.returncode == 0, done.stderr
    for words in ("qwen3-8b", "5.67 GB", "6.9 GiB", "duo", "free in", "proposed for this machine: "):
        assert words in done.stdout
    assert "Llama 3.2 Community License" in done.stdout
    lines = done.stdout.splitlines()
    assert [line for line in lines if line != line.rstrip()] == []
    assert any(line.split()[:1] == ["qwen3-14b"] and " GPU " in line for line in lines)
    assert any(line.split()[:1] == ["qwen2.5-1.5b"] and " CPU " in line for line in lines)
    # Piped, a description is one line, however long.
    assert "  A well-known all-rounder with a long context (Llama 3.1 and 3.2 Community Licenses)" in lines


# -- behind a screen --------------------------------------------------------------------------------------


def test_in_the_background_the_same_values_arrive(env: Path) -> None:
    events = list(BackgroundPull(["duo"]).events())
    assert sum(isinstance(event, Plan) for event in events) == 1
    assert {e.file for e in events if isinstance(e, Progress) and e.phase is Phase.DONE} == {
        "target.gguf",
        "draft.gguf",
    }
    assert (env / "models" / REPO / "target.gguf").stat().st_size == SIZE


def test_in_the_background_failures_are_sentences(hub: FakeHub) -> None:
    hub.knobs.gated_for = set()
    with pytest.raises(SpecchatError, match="is gated"):
        list(BackgroundPull(["duo"]).events())


def test_cancelling_ends_a_stall_promptly(env: Path, hub: FakeHub) -> None:
    hub.knobs.stall_after = 100_000
    pull = BackgroundPull(["duo"])
    ended: list[bool] = []

    def cancel() -> None:
        parts = (env / "models" / REPO).glob
        while sum(part.stat().st_size for part in parts("*.part")) < 200_000:
            time.sleep(0.02)
        with promptly():
            pull.cancel()
        ended.append(True)

    canceller = threading.Thread(target=cancel)
    canceller.start()
    list(pull.events())
    canceller.join()
    assert ended
    assert sum(part.stat().st_size for part in (env / "models" / REPO).glob("*.part")) == 200_000


@pytest.mark.skipif(sys.platform != "linux", reason="reads the priority of every thread")
def test_a_pull_begins_as_fast_as_anything_and_fetches_at_the_lowest_priority(hub: FakeHub) -> None:
    hub.knobs.stall_after = 100_000
    pull = BackgroundPull(["duo"])
    assert os.getpriority(os.PRIO_PROCESS, pull.pid) == os.getpriority(os.PRIO_PROCESS, 0)
    for event in pull.events():
        if isinstance(event, Progress) and event.phase is Phase.DOWNLOADING and event.done == 100_000:
            threads = [int(task.name) for task in Path(f"/proc/{pull.pid}/task").iterdir()]
            assert {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads} == {19}
            pull.cancel()
    assert len(threads) > 2


def test_a_background_process_that_dies_is_said(hub: FakeHub) -> None:
    hub.knobs.pace = SIZE / 20
    pull = BackgroundPull(["duo"])
    events = pull.events()
    assert any(isinstance(event, Plan) for event in events)
    os.kill(pull.pid, signal.SIGKILL)
    with pytest.raises(SpecchatError, match="died; pull again"):
        list(events)


# -- the table ----------------------------------------------------------------------------------------------


def test_the_table_does_not_load_llama_cpp_itself() -> None:
    script = "import sys; from specchat.cli import main; main(['pull'], standalone_mode=False)"
    script += "; sys.exit('llama_cpp' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert "proposed for this machine" in result.stdout


def test_a_graphics_card_changes_what_is_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    card = probe.Device("CUDA0", "a card", "gpu", 24 * GIB, 24 * GIB)
    for devices, words in (((card,), "made for a graphics card"), ((), "made for a CPU")):
        build = probe.Build("0", "", gpu=True, rpc=False, devices=devices)
        monkeypatch.setattr(probe, "build", lambda build=build: build)
        assert words in CliRunner().invoke(main, ["pull"]).stdout


def test_the_table_is_shown_where_llama_cpp_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> probe.Build:
        raise SpecchatError("llama.cpp did not answer")

    monkeypatch.setattr(probe, "build", fails)
    result = CliRunner().invoke(main, ["pull"])
    assert result.exit_code == 0
    assert "made for a CPU" in result.stdout
