"""The history under more of everything: hundreds of kills, several writers at once, thousands of random calls."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from specchat.history import HistoryError, Store
from tests.history_crash import ROOT, check_kept, kill_writer, promises, start_writer
from tests.history_model import HistoryMachine, check_integrity

TestHistory = HistoryMachine.TestCase
TestHistory.settings = settings(
    max_examples=1500,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def test_two_hundred_kills_lose_nothing(tmp_path: Path) -> None:
    for seed in range(200):
        # A new file now and then: the moments of its making and first checkpoints are worth hitting too.
        check_kept(tmp_path / f"history-{seed // 20}.db", kill_writer(tmp_path / f"history-{seed // 20}.db", seed))


def test_writers_killed_among_other_writers_lose_nothing(tmp_path: Path) -> None:
    chance = random.Random(1)
    for seed in range(0, 120, 3):
        file = tmp_path / f"history-{seed // 30}.db"
        with ExitStack() as stack:
            said = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3)]
            writers = [start_writer(file, words, seed + n) for n, words in enumerate(said)]
            time.sleep(0.4)
            for writer in writers:
                time.sleep(chance.random() * 0.3)
                writer.send_signal(signal.SIGKILL)
            for writer, words in zip(writers, said, strict=True):
                writer.wait()
                words.seek(0)
                check_kept(file, promises(words.read()))


def test_a_disk_that_really_fills_up_keeps_what_was_kept(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting takes root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path], check=True)
    try:
        file = tmp_path / "history.db"
        with Store(file) as store:
            question = store.send(store.create().id, "one", after=None).message
            reply = store.begin_reply(question.id)
            kept = ""
            failure = ""
            while not failure:
                try:
                    store.append_to(reply.id, "word " * 100)
                    kept += "word " * 100
                except HistoryError as error:
                    failure = str(error)
            assert failure == f"the disk that holds {file} is full: free some space, then try again"
            assert store.message(reply.id).content == kept
        # Not even the mark that the reply was stopped fits; the next start sets it right.
        subprocess.run(["mount", "-o", "remount,size=16m", tmp_path], check=True)
        with Store(file) as store:
            assert store.message(reply.id).content == kept
            assert store.message(reply.id).state == "stopped"
            check_integrity(store)
            turn = store.continue_reply(reply.id)
            store.append_to(turn.message.id, "and on")
            assert store.finish(reply.id).content == kept + "and on"
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_damage_met_by_many_processes_at_once_is_set_aside_once(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from specchat.history import Store
sys.stdin.readline()
with Store(Path(sys.argv[1])) as store:
    print(store.create().id, store.set_aside is not None)
"""
    for number in range(20):
        file = tmp_path / str(number) / "history.db"
        file.parent.mkdir()
        file.write_bytes(b"Dear diary,\n" * 100)
        windows = [
            subprocess.Popen(
                [sys.executable, "-c", script, str(file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            for _ in range(6)
        ]
        answers = [window.communicate("go\n", timeout=60)[0].split() for window in windows]
        assert sum(moved == "True" for _, moved in answers) == 1
        assert [path.read_bytes() for path in file.parent.glob("*damaged*")] == [b"Dear diary,\n" * 100]
        with Store(file) as store:
            assert store.counts().conversations == len({name for name, _ in answers}) == 6
            check_integrity(store)
