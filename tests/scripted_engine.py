"""An engine whose replies are scripted by the message it is sent: for tests of everything above the engine.

`use(monkeypatch)` makes every engine process started from the test run it. The last user message is the script. Its
words are the reply, one token each, with the spaces between them; a word that begins with "!" is an instruction:

!pause=0.02      sleep that long in every round from here on
!reading=6200    announce a prompt of so many tokens, read in batches of 512
!think, !answer  what follows is reasoning; what follows is the answer
!again           start over at the word after the last instruction, for ever
!notice=TEXT     a notice (underscores become spaces)
!die=SIGSEGV     the process gets this signal;  !exit=3: it ends with this status
!hang=60         it does nothing for so many seconds, in a native call that holds Python's lock
!torn=3          it ends with this status in the middle of a message;  !mute: it closes its pipe and lives on
!fail=TEXT       SpecchatError;  !bug: ValueError;  !long=9000: PromptTooLong, of so many tokens
!noise=10        write so many bytes to the process's standard output and standard error each

With speculation off every round keeps one word; otherwise up to depth + 1 (depth 3 if none is asked). A target whose
name starts with "slow" takes two seconds to load, "bad" is no model, "deadly" kills the process, "heavy" does so on the
first two rungs of its plan; a draft whose name starts with "bad" does not fit, and one that starts with "large" has no
room in memory until it is restored. "!release" releases the draft.
"""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from specchat.engine.policy import Mode, Speculation
from specchat.engine.replies import Event, Finished, Generated, Message, Notice, PromptTooLong, Reading, ReplyOptions
from specchat.engine.rounds import Origin, Round
from specchat.engine.stats import Figures, Prompt, Stats
from specchat.engine.text import Piece
from specchat.errors import SpecchatError
from specchat.worker.protocol import EngineInfo, Load, ModelInfo

if TYPE_CHECKING:
    import pytest

N_CTX: Final = 8192
BATCH: Final = 512


def use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let engine processes started from now on run the scripted engine."""
    for name, value in environment().items():
        monkeypatch.setenv(name, value)


def environment() -> dict[str, str]:
    """The variables that do so, for a program started by a test."""
    root = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    return {"SPECCHAT_ENGINE": "tests.scripted_engine:load_engine", "PYTHONPATH": path}


def load_engine(
    request: Load, progress: Callable[[str, float | None], None], cancelled: Callable[[], bool]
) -> tuple[ScriptedEngine, EngineInfo]:
    """The factory that `specchat.worker.process` is pointed at."""
    steps = 200 if request.target.name.startswith("slow") else 2
    for step in range(steps):
        progress("loading the target", step / steps)
        time.sleep(0.01)
    if request.target.name.startswith("deadly"):
        os.kill(os.getpid(), signal.SIGKILL)
    if request.target.name.startswith("heavy") and request.steps_down < 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if request.target.name.startswith("bad"):
        raise SpecchatError(f"{request.target} is not a GGUF file")
    obstacle = "its vocabulary differs" if request.draft and request.draft.name.startswith("bad") else ""
    if obstacle and request.draft_required:
        raise SpecchatError(f"the draft cannot be used: {obstacle}")
    large = request.draft is not None and request.draft.name.startswith("large")
    if large or (request.draft and request.steps_down):
        obstacle = "there is not enough memory"
    draft = None if request.draft is None or obstacle else ModelInfo(request.draft.name, "scripted", 1 << 20)
    info = EngineInfo(
        target=ModelInfo(request.target.name, "scripted", 1 << 24),
        draft=draft,
        n_ctx=request.settings.n_ctx or N_CTX,
        threads=request.settings.threads or 2,
        draft_obstacle=obstacle,
        draft_can_return="memory" in obstacle,
        steps_down=request.steps_down,
        thinks=True,
    )
    return ScriptedEngine(request.settings.speculation, info, cancelled), info


def restore_draft(
    engine: ScriptedEngine,
    info: EngineInfo,
    request: Load,
    progress: Callable[[str, float | None], None],
    _cancelled: Callable[[], bool],
) -> EngineInfo:
    """The second function of a factory."""
    assert request.draft is not None
    progress("loading the draft", 0.5)
    draft = ModelInfo(request.draft.name, "scripted", 1 << 20)
    engine.has_draft = True
    return replace(info, draft=draft, draft_obstacle="", draft_can_return=False)


class ScriptedEngine:
    """See the module."""

    def __init__(self, speculation: Speculation, info: EngineInfo, cancelled: Callable[[], bool]) -> None:
        self.speculation = speculation
        self.disturbed = False
        self.info = info
        self.cancelled = cancelled
        self.has_draft = info.draft is not None
        self.draft_failure = ""
        self.hurried = False  # asked to end its reasoning

    def count_tokens(self, text: str) -> int:
        return len(text.split())

    def margin(self, messages: Sequence[Message], options: ReplyOptions, tokens: Sequence[int]) -> float:
        del messages, options
        return 0.5 + len(tokens)

    def relieve(self) -> bool:
        return False

    def answer_now(self) -> None:
        self.hurried = True

    def close(self) -> None:
        pass

    def reply(self, messages: Sequence[Message], options: ReplyOptions) -> Generator[Event, None, None]:
        yield from _Reply(self, messages, options).events()


def _answers() -> int:
    """The descriptor that answers leave by: the only pipe that this process writes to, and not standard output."""
    pipes = [fd for fd in range(3, 20) if _is_open(fd) and stat.S_ISFIFO(os.fstat(fd).st_mode)]
    return pipes[-1]


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


class _Reply:
    """The run of one script."""

    def __init__(self, engine: ScriptedEngine, messages: Sequence[Message], options: ReplyOptions) -> None:
        self.engine, self.info, self.limit = engine, engine.info, options.max_tokens
        self.script = messages[-1].content.split()
        self.prompt = sum(len(message.content.split()) for message in messages)
        self.place = self.restart = self.kept = 0
        self.pause = 0.0
        self.reasoning = False
        self.figures = Figures()
        self.stats = Stats(Prompt(self.prompt, 0, 0.0, self.info.n_ctx))

    def events(self) -> Generator[Event, None, None]:
        if self.prompt >= self.info.n_ctx:
            raise SpecchatError(f"the prompt has {self.prompt} tokens, the context holds {self.info.n_ctx}")
        reason = ""
        self.engine.hurried = False
        while not reason:
            self.hurry()
            yield from self.instructions()
            words = self.words(self.depth() + 1)
            if words:
                yield self.generated(words)
            full = self.prompt + self.kept >= self.info.n_ctx
            over = self.place >= len(self.script)
            reason = "length" if self.limit == self.kept else "context" if full else "end" if over else ""
            reason = "cancelled" if self.engine.cancelled() else reason
        yield Finished(reason, self.figures)

    def hurry(self) -> None:
        """Leave the rest of the reasoning out, where that is asked for."""
        if self.engine.hurried and self.reasoning and "!answer" in self.script[self.place :]:
            self.place = self.script.index("!answer", self.place)

    def depth(self) -> int:
        speculation = self.engine.speculation
        return 0 if speculation.mode is Mode.OFF else speculation.depth or 3

    def instructions(self) -> Generator[Event, None, None]:
        while self.place < len(self.script) and self.script[self.place].startswith("!"):
            name, _, value = self.script[self.place][1:].partition("=")
            self.place += 1
            yield from self.obey(name, value.replace("_", " "))
            if name != "again":
                self.restart = self.place

    def obey(self, name: str, value: str) -> Generator[Event, None, None]:
        match name:
            case "pause":
                self.pause = float(value)
            case "reading":
                for done in (*range(0, int(value), BATCH), int(value)):
                    if self.engine.cancelled():
                        return
                    yield Reading(done, int(value), 0)
                    time.sleep(self.pause)
            case "think" | "answer":
                self.reasoning = name == "think"
            case "again":
                self.place = self.restart
            case "notice":
                yield Notice(value)
            case "release":
                self.engine.has_draft, self.engine.draft_failure = False, value
                yield Notice("the draft model was released")
            case "die":
                os.kill(os.getpid(), signal.Signals[value])
                time.sleep(10)
            case "hang":
                ctypes.PyDLL(None).sleep(int(value))
            case "torn":
                os.write(_answers(), b"\x80\x05\x95\xff")
                os._exit(int(value))
            case "mute":
                os.close(_answers())
                time.sleep(10)
            case "exit":
                os._exit(int(value))
            case "fail":
                raise SpecchatError(value)
            case "long":
                raise PromptTooLong("this message alone", int(value), 4096)
            case "bug":
                raise ValueError("scripted bug")
            case "noise":
                os.write(1, b"1" * int(value))
                sys.stderr.write("2" * int(value))
            case _:
                raise SpecchatError(f"there is no instruction !{name}")

    def words(self, most: int) -> list[str]:
        """The next words, up to an instruction, the token limit or `most`."""
        room = min(most, self.info.n_ctx - self.prompt - self.kept)
        if self.limit is not None:
            room = min(room, self.limit - self.kept)
        words: list[str] = []
        while len(words) < room and self.place < len(self.script) and not self.script[self.place].startswith("!"):
            words.append(self.script[self.place] + (" " if self.place + 1 < len(self.script) else ""))
            self.place += 1
        return words

    def generated(self, words: list[str]) -> Generated:
        time.sleep(self.pause)
        depth, accepted = self.depth(), len(words) - 1
        last = Origin.PLAIN if depth == 0 else Origin.BONUS if accepted == depth else Origin.CORRECTED
        origins = (*(Origin.ACCEPTED,) * accepted, last)
        self.kept += len(words)
        event = Round(
            tokens=tuple(len(word) for word in words),
            origins=origins,
            drafter=self.drafter() if depth else "plain",
            proposed=depth,
            tested=min(depth, accepted + 1),
            accepted=accepted,
            draft_seconds=0.001 * depth,
            target_seconds=0.01,
            total_seconds=max(self.pause, 0.001 * depth + 0.012),
            context_used=self.prompt + self.kept,
            reason="" if depth else "speculation is off",
        )
        self.figures = self.stats.add(event, plain_seconds=0.012)
        pieces = tuple(Piece(word, o, self.reasoning) for word, o in zip(words, origins, strict=True))
        return Generated(pieces, event, self.figures)

    def drafter(self) -> str:
        mode = self.engine.speculation.mode
        return "ngram" if mode is Mode.NGRAM or self.info.draft is None else "draft"
