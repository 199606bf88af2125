"""Kill a writing window at a moment of choice, and hold what is left against what it said (`history_writer`)."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from specchat.history import Store
from tests.history_model import check_integrity

ROOT = Path(__file__).parent.parent


@dataclass
class Promised:
    """What a killed window's conversation must hold, and the one call it was in."""

    conversation: str = ""
    questions: dict[int, str] = field(default_factory=dict)
    replies: dict[int, str] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    unsent: str = ""
    under_way: dict[str, Any] = field(default_factory=dict)


def start_writer(path: Path, said: IO[str], seed: int, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.history_writer", str(path), str(seed), *more]
    return subprocess.Popen(command, stdout=said, cwd=ROOT)


def kill_writer(path: Path, seed: int, seconds: float = 0.5) -> Promised:
    """Run one, kill it within so many seconds of its first word (or while it opens), and return its promises."""
    chance = random.Random(seed)
    # A file, not a pipe: a full pipe would stop the writer between two calls, always at the same place.
    with tempfile.TemporaryFile("w+") as said:
        writer = start_writer(path, said, seed)
        opening = chance.random() < 0.2
        while not opening and not os.fstat(said.fileno()).st_size:
            assert writer.poll() is None
            time.sleep(0.01)
        time.sleep(chance.random() * seconds)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        said.seek(0)
        return promises(said.read())


def promises(said: str) -> Promised:
    promised = Promised()
    for line in said.splitlines(keepends=True):
        if not line.endswith("\n"):
            break  # killed in the middle of a word
        fact = json.loads(line)
        promised.under_way = fact if fact["kind"] == "will" else {}
        match fact:
            case {"kind": "conversation", "id": name}:
                promised.conversation = name
            case {"kind": "did", "what": "unsent", "text": text}:
                promised.unsent = text
            case {"kind": "did", "what": "send", "id": number, "text": text}:
                promised.questions[number], promised.unsent = text, ""
            case {"kind": "did", "what": "append", "id": number, "text": text}:
                promised.replies[number] = promised.replies.get(number, "") + text
            case {"kind": "did", "what": "finish", "id": number}:
                promised.ended.add(number)
    return promised


def check_kept(path: Path, promised: Promised) -> None:
    """All that was said to be done is there, and nothing else but the one call under way."""
    with Store(path) as store:
        assert store.set_aside is None
        check_integrity(store)
        if not promised.conversation:
            return
        kept = store.conversation(promised.conversation)
        messages = {message.id: message for message in store.tree(kept.id)}
        about = promised.under_way.get("what"), promised.under_way.get("text", "")
        assert kept.unsent in {promised.unsent, *([about[1]] if about[0] == "unsent" else [""])}
        for number, text in promised.questions.items():
            assert messages.pop(number).content == text
        for number, text in promised.replies.items():
            reply = messages.pop(number)
            more = about[1] if promised.under_way.get("id") == number else ""
            assert reply.content in (text, text + more)
            assert reply.reasoning == reply.content.upper()
            if number in promised.ended:
                assert reply.state == "complete"
                assert reply.figures
            else:
                assert reply.state in ("stopped", "complete")
        # A question or reply begun in the last moment, before it could say so.
        assert len(messages) <= 1
        for message in messages.values():
            assert message.content in ("", about[1])
            assert message.id > max([*promised.questions, *promised.replies, 0])
        assert [m.id for m in store.path(kept.leaf)] == sorted(m.id for m in store.tree(kept.id))
        check_integrity(store)
