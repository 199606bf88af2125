"""Offload and the ladder against a device with a real memory limit: this machine's CPU, served over loopback.

Needs a llama.cpp with the RPC engine: scripts/test-offload makes one. The real demo pair is used throughout.
"""

from __future__ import annotations

import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specchat import locations
from specchat.engine import remote
from specchat.engine.replies import ReplyOptions
from specchat.engine.sampling import SamplingSettings
from specchat.session import Launch, Reply, Session
from specchat.units import MIB
from specchat.worker import planner
from specchat.worker.client import EngineDied
from specchat.worker.protocol import Load, LoadSettings
from tests.conftest import DemoPair

SPECCHAT = [sys.executable, "-c", "from specchat.cli import main; main(prog_name='specchat')"]
GREEDY = ReplyOptions(SamplingSettings(temperature=0.0), max_tokens=24)
N_CTX = 2048
PLENTY = 4 << 30
# "load_tensors:  RPC0[...] model buffer size =   106.00 MiB", "... KV buffer size", "... compute buffer size".
_BUFFER = re.compile(r"(RPC0|CPU)\S* +(model|KV|compute) buffer size = +([\d.]+) MiB")

Serve = Callable[[int], str]


@pytest.fixture
def workers() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for worker in started:
        worker.kill()
        worker.wait()


@pytest.fixture
def serve(workers: list[subprocess.Popen[bytes]], tmp_path: Path) -> Serve:
    """Starts `specchat rpc-worker` with so many bytes of address space; answers with its HOST:PORT."""

    def start(room: int) -> str:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        log = (tmp_path / f"worker-{port}.log").open("wb")
        command = [*SPECCHAT, "rpc-worker", "--port", str(port), "-t", "1"]
        limit = None if room == PLENTY else lambda: resource.setrlimit(resource.RLIMIT_AS, (room, room))
        workers.append(subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=limit))
        _wait_for(port, workers[-1])
        return f"127.0.0.1:{port}"

    return start


def _wait_for(port: int, worker: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert worker.poll() is None, "the worker ended by itself"
            assert time.monotonic() < end, "the worker does not answer"
            time.sleep(0.1)


@pytest.fixture
def sessions(demo_pair: DemoPair) -> Iterator[Callable[..., Session]]:
    opened: list[Session] = []

    def make(*endpoints: str, draft: bool = False, limit: int | None = None) -> Session:
        settings = LoadSettings(n_ctx=N_CTX, threads=1, rpc=endpoints, memory_limit=limit)
        small = demo_pair.draft if draft else None
        opened.append(Session(Launch("demo", demo_pair.target, small, settings=settings, options=GREEDY)))
        return opened[-1]

    yield make
    for session in opened:
        session.close()


def ask(session: Session, text: str = "Name three colours.") -> Reply:
    reply = Reply()
    for event in session.send(text):
        reply.add(event)
    return reply


def took() -> dict[tuple[str, str], int]:
    """What the latest engine's log says was allocated: bytes by (device, kind)."""
    log = max(locations.logs_dir().glob("engine-*.log"), key=lambda path: path.stat().st_mtime)
    found: dict[tuple[str, str], int] = {}
    for device, kind, size in _BUFFER.findall(log.read_text(errors="replace")):
        found[device, kind] = found.get((device, kind), 0) + round(float(size) * MIB)
    return found


def planned(lines: tuple[str, ...], device: str) -> int:
    """MiB planned on a device, from the plan in print."""
    row = next(line.split() for line in lines if line.startswith(f"{device} "))
    at = row.index("MiB", len(row) - 4) if row[-1] != "MiB" else len(row) - 1
    return int(row[at - 1])


def test_this_build_has_the_engine() -> None:
    assert remote.supported()


def test_a_target_on_another_machine_answers_as_it_does_here(serve: Serve, sessions: Callable[..., Session]) -> None:
    here = ask(sessions())
    there = sessions(serve(PLENTY))
    assert ask(there).answer == here.answer
    assert there.info is not None
    assert there.info.devices[0].startswith("RPC0 (127.0.0.1:")
    assert "target on RPC0" in there.info.plan[0]


def test_the_draft_stays_on_this_machine(serve: Serve, sessions: Callable[..., Session]) -> None:
    session = sessions(serve(PLENTY), draft=True)
    assert ask(session).answer
    assert session.info is not None
    assert session.info.draft is not None
    assert "the draft in RAM" in session.info.plan[0]


def test_the_estimate_on_a_device_is_what_is_allocated_there(serve: Serve, sessions: Callable[..., Session]) -> None:
    session = sessions(serve(PLENTY))
    ask(session)
    assert session.info is not None
    real = sum(size for (device, _), size in took().items() if device == "RPC0")
    estimated = planned(session.info.plan, "RPC0") * MIB
    assert abs(estimated - real) <= max(0.1 * real, 32 * MIB)


def test_a_limit_on_each_device_spreads_the_target(serve: Serve, sessions: Callable[..., Session]) -> None:
    """150 MiB hold it neither here nor there."""
    session = sessions(serve(PLENTY), limit=150 * MIB)
    assert ask(session).answer == ask(sessions()).answer
    assert session.info is not None
    assert re.search(r"^\d+ of 31 layers of the target on RPC0", session.info.plan[0])
    assert "the target on RPC0: " in "\n".join(session.info.plan)


@pytest.mark.parametrize("room", [330, 360, 420])
def test_a_device_that_has_less_than_it_says_costs_only_the_offload(
    serve: Serve, sessions: Callable[..., Session], room: int
) -> None:
    """The worker may not map enough for weights, cache or compute buffer: it is the real attempt that tells."""
    session = sessions(serve(room * MIB), draft=True)
    assert ask(session).answer == ask(sessions()).answer
    assert session.info is not None
    if session.info.devices == ("CPU",):  # "the target on RPC0, ...: there is not enough memory to load ..."
        assert re.search("RPC0|going on without", " ".join(session.info.notices))


def test_a_worker_that_dies_in_mid_reply_is_said_and_done_without(
    serve: Serve, sessions: Callable[..., Session], workers: list[subprocess.Popen[bytes]]
) -> None:
    session = sessions(serve(PLENTY))
    reply = Reply()

    def until_it_dies() -> None:
        for event in session.send("Count from one to one hundred."):
            reply.add(event)
            if reply.answer:
                workers[0].kill()

    with pytest.raises(EngineDied, match="--rpc"):
        until_it_dies()
    assert session.messages[-1].content == reply.answer != ""
    assert ask(session).answer
    assert session.info is not None
    assert session.info.devices == ("CPU",)
    assert "going on without" in "\n".join(session.info.notices)


def test_nobody_at_an_endpoint_is_said(demo_pair: DemoPair) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    request = Load(0, demo_pair.target, settings=LoadSettings(n_ctx=N_CTX, rpc=(f"127.0.0.1:{port}",)))
    lines = planner.explain(request).lines
    assert "the target alone in RAM" in lines[0]
    assert f"nobody serves devices at 127.0.0.1:{port}" in "\n".join(lines)


def test_the_worker_warns_and_ends_on_ctrl_c(
    serve: Serve, workers: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    serve(PLENTY)
    workers[0].send_signal(signal.SIGINT)
    assert workers[0].wait(10) == -signal.SIGINT
    said = next(tmp_path.glob("worker-*.log")).read_text()
    assert "no authentication" in said
    assert "WARNING" not in said


def test_an_address_that_is_taken_is_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [*SPECCHAT, "rpc-worker", "--port", str(taken.getsockname()[1])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "cannot serve at" in done.stderr
    assert "Traceback" not in done.stderr
