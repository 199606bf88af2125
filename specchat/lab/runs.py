"""One reply, measured; and what a mode of decoding is called.

Contract: the clock runs from the request, prompt reading included; "tokens/s" counts what came after the first round,
which is where a person has begun to read.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import psutil

from specchat.engine.cache import Cancelled
from specchat.engine.chat import Engine
from specchat.engine.decoder import Decoder
from specchat.engine.drafters import Drafter, NgramDrafter
from specchat.engine.policy import Mode, Policy, Speculation
from specchat.engine.replies import Finished, Generated, Message, ReplyOptions
from specchat.engine.rounds import Round
from specchat.engine.stats import ratio
from specchat.errors import SpecchatError
from specchat.lab.prompts import Prompt
from specchat.lab.rig import Rig

PLAIN: Final = "plain"
MODES: Final = (PLAIN, "draft", "ngram", "auto")
DEEPEST: Final = 64

GRAM: Final = 16
TIMES: Final = 3


def speculation(mode: str) -> Speculation:
    """What "plain", "auto", "ngram" or "draft:3" asks the policy for. Raises SpecchatError."""
    name, colon, depth = mode.partition(":")
    if name not in MODES or (name == PLAIN and colon):
        raise SpecchatError(f"there is no mode {mode}: there is {', '.join(MODES)}, and depths as in draft:3")
    if colon and not (depth.isdecimal() and 1 <= int(depth) <= DEEPEST):
        raise SpecchatError(f"the depth in {mode} must be a whole number from 1 to {DEEPEST}")
    return Speculation(Mode.OFF if name == PLAIN else Mode(name), int(depth) if colon else None)


def intact(decoder: Decoder) -> None:
    """Raises SpecchatError if a drafter failed in a reply: what was measured is not what was asked for."""
    if decoder.lost:
        raise SpecchatError("; ".join(decoder.lost.values()))


def read(drafters: Iterable[Drafter], policy: Policy, prompt: Sequence[int]) -> None:
    """Have the drafters know a prompt before its reply begins: the look-up, and the draft if it will be used."""
    for drafter in drafters:
        if isinstance(drafter, NgramDrafter) or policy.wants(drafter.name):
            for _ in drafter.read(prompt):
                pass


@dataclass(frozen=True, slots=True)
class Run:
    """One reply in one mode."""

    prompt: str  # its name
    mode: str
    repeat: int
    tokens: tuple[int, ...]  # of the reply, an end token included
    first_token: float  # seconds from the request
    seconds: float  # from the first round's end to the last's
    rate: float | None  # tokens/s after the first round; None of a reply of one round
    passes: int
    proposed: int
    tested: int
    accepted: int
    speculated: float  # share of the passes that verified something
    loops: bool


def measure(rig: Rig, engine: Engine, prompt: Prompt, mode: str, options: ReplyOptions, repeat: int = 0) -> Run:
    """Have `engine` answer from empty caches. Raises Cancelled."""
    rig.clear()
    messages = [Message("user", prompt.text)]
    asked = rig.prompt(prompt.text)
    rounds: list[Round] = []
    started = first = last = time.perf_counter()
    for event in engine.reply(messages, options):
        if isinstance(event, Generated):
            last = time.perf_counter()
            first = first if rounds else last
            rounds.append(event.round)
        elif isinstance(event, Finished) and event.reason == "cancelled":
            raise Cancelled
    if engine.draft_failure:
        raise SpecchatError(engine.draft_failure)
    tokens = tuple(token for one in rounds for token in one.tokens)
    return Run(
        prompt=prompt.name,
        mode=mode,
        repeat=repeat,
        tokens=tokens,
        first_token=first - started,
        seconds=last - first,
        rate=ratio(len(tokens) - len(rounds[0].tokens), last - first) or None,
        passes=len(rounds),
        proposed=sum(one.proposed for one in rounds),
        tested=sum(one.tested for one in rounds),
        accepted=sum(one.accepted for one in rounds),
        speculated=sum(one.proposed > 0 for one in rounds) / len(rounds),
        loops=loops(asked, tokens),
    )


def loops(prompt: Sequence[int], reply: Sequence[int]) -> bool:
    """Whether a run of 16 tokens that the prompt does not have comes three times in the reply.

    Small models end in such loops; speculation then shines at something that nobody wants to read.
    """
    known = set(_grams(prompt))
    counts = Counter(gram for gram in _grams(reply) if gram not in known)
    return max(counts.values(), default=0) >= TIMES


def _grams(tokens: Sequence[int]) -> list[tuple[int, ...]]:
    return [tuple(tokens[i : i + GRAM]) for i in range(len(tokens) - GRAM + 1)]


def peak_memory() -> int:
    """The most bytes of memory that this process has had, mapped weights included."""
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # kilobytes on Linux
