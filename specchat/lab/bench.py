"""The benchmark: every mode on every prompt, alternating within one run, each against plain of the same repeat.

Contract: `Bench.run` yields progress and collects; `Bench.report` answers at any time with what there is. Only ratios
between modes of one repeat count as speed-up, so that whatever slows the machine down slows both.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from specchat.engine.chat import Engine
from specchat.engine.costs import Costs
from specchat.engine.policy import AdaptivePolicy
from specchat.engine.replies import ReplyOptions
from specchat.engine.stats import ratio
from specchat.lab.prompts import WARM_UP, Prompt
from specchat.lab.rig import Rig, following
from specchat.lab.runs import PLAIN, Run, measure, peak_memory, speculation
from specchat.pairs.library import Step

WARM_UP_TOKENS: Final = 64


@dataclass(frozen=True, slots=True)
class Row:
    """One mode on one prompt: medians over the repeats."""

    prompt: str
    mode: str
    tokens: int
    rate: float | None  # tokens/s after the first token
    speed_up: float | None  # against plain
    acceptance: float | None
    per_pass: float
    first_token: float
    loops: bool


@dataclass(frozen=True, slots=True)
class Headline:
    """One mode over all prompts whose replies do not loop."""

    mode: str
    rate: float | None  # tokens of all replies over the seconds of all
    speed_up: float | None  # geometric mean over the prompts
    worst: float | None  # speed-up on the prompt where it is least
    worst_prompt: str
    acceptance: float | None
    per_pass: float
    first_token: float  # median
    first_token_ratio: float | None  # against plain, median


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was measured."""

    headlines: tuple[Headline, ...]
    rows: tuple[Row, ...]
    left_out: tuple[str, ...]  # prompts with a reply that loops
    costs: Costs
    acceptance: float | None  # the draft model's, over all rounds in which nothing but it proposed
    peak_memory: int  # bytes
    load: float | None  # processes that were waiting for the processor when it began
    runs: tuple[Run, ...]


class Bench:
    """One benchmark. `modes` are names as `runs.speculation` reads them; plain is always among them."""

    def __init__(
        self, rig: Rig, prompts: Sequence[Prompt], modes: Sequence[str], options: ReplyOptions, repeats: int
    ) -> None:
        self._rig, self._prompts, self._options, self._repeats = rig, prompts, options, repeats
        self._modes = tuple(dict.fromkeys((PLAIN, *modes)))
        self._load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        self._costs = Costs()
        self._runs: list[Run] = []

    def run(self) -> Iterator[Step]:
        """Measure. May be abandoned at any step. Raises PromptTooLong, before anything is measured."""
        for prompt in self._prompts:
            self._rig.prompt(prompt.text)
        yield Step("measuring this machine")
        self._costs = self._rig.calibrate()
        # One policy a mode, kept from prompt to prompt as in a conversation.
        engines = {mode: self._rig.engine(AdaptivePolicy(speculation(mode), self._costs)) for mode in self._modes}
        yield from self._warm_up(engines)
        total = len(self._prompts) * self._repeats * len(self._modes)
        for prompt in self._prompts:
            for repeat in range(self._repeats):
                for mode in rotated(self._modes, repeat):
                    yield Step(f"{prompt.name}, {mode}", len(self._runs), total, in_bytes=False)
                    options = self._seeded(repeat)
                    self._runs.append(measure(self._rig, engines[mode], prompt, mode, options, repeat))

    def _warm_up(self, engines: dict[str, Engine]) -> Iterator[Step]:
        options = replace(self._options, max_tokens=min(WARM_UP_TOKENS, self._options.max_tokens or WARM_UP_TOKENS))
        for mode, engine in engines.items():
            self._rig.clear()
            yield from following(WARM_UP.text, engine, options, f"warming up {mode}")

    def _seeded(self, repeat: int) -> ReplyOptions:
        sampling = self._options.sampling
        seed = repeat if sampling.seed is None else sampling.seed + repeat
        return replace(self._options, sampling=replace(sampling, seed=seed))

    def report(self) -> Report:
        """What the runs so far come to; prompts that plain has not answered yet are left out."""
        names = [p.name for p in self._prompts if any((r.prompt, r.mode) == (p.name, PLAIN) for r in self._runs)]
        rows = tuple(row for name in names for mode in self._modes if (row := self._row(name, mode)))
        left_out = tuple(dict.fromkeys(row.prompt for row in rows if row.loops))
        drafted = [run for run in self._runs if run.mode.partition(":")[0] == "draft"]
        return Report(
            headlines=tuple(_headline(mode, rows, self._runs, left_out) for mode in self._modes if rows),
            rows=rows,
            left_out=left_out,
            costs=self._costs,
            acceptance=ratio(sum(run.accepted for run in drafted), sum(run.tested for run in drafted)),
            peak_memory=peak_memory(),
            load=self._load,
            runs=tuple(self._runs),
        )

    def _row(self, prompt: str, mode: str) -> Row | None:
        runs = [run for run in self._runs if (run.prompt, run.mode) == (prompt, mode)]
        if not runs:
            return None
        return Row(
            prompt=prompt,
            mode=mode,
            tokens=round(median(len(run.tokens) for run in runs)),
            rate=_median(run.rate for run in runs),
            speed_up=_median(self._against_plain(run) for run in runs),
            acceptance=ratio(sum(run.accepted for run in runs), sum(run.tested for run in runs)),
            per_pass=sum(len(run.tokens) for run in runs) / sum(run.passes for run in runs),
            first_token=median(run.first_token for run in runs),
            loops=any(run.loops for run in runs),
        )

    def _against_plain(self, run: Run) -> float | None:
        plain = next((r for r in self._runs if r.mode == PLAIN and _same_turn(r, run)), None)
        return run.rate / plain.rate if plain and plain.rate and run.rate else None


def rotated(modes: Sequence[str], repeat: int) -> Sequence[str]:
    """The modes beginning with another one each time: none is always first."""
    start = repeat % len(modes)
    return [*modes[start:], *modes[:start]]


def _headline(mode: str, rows: Sequence[Row], runs: Sequence[Run], left_out: Sequence[str]) -> Headline:
    # Where every reply loops, figures over all of them are better than none; the table says so.
    skipped = set(left_out) if len(left_out) < len({row.prompt for row in rows}) else set()
    mine = [run for run in runs if run.mode == mode and run.prompt not in skipped]
    speed_ups = {row.prompt: row.speed_up for row in rows if row.mode == mode and row.prompt not in skipped}
    known = {prompt: speed_up for prompt, speed_up in speed_ups.items() if speed_up}
    worst = min(known, key=lambda prompt: known[prompt], default="")
    timed = [run for run in mine if run.rate]
    plain = {(run.prompt, run.repeat): run.first_token for run in runs if run.mode == PLAIN}
    waits = [run.first_token / plain[run.prompt, run.repeat] for run in mine if (run.prompt, run.repeat) in plain]
    return Headline(
        mode=mode,
        rate=ratio(sum((run.rate or 0.0) * run.seconds for run in timed), sum(run.seconds for run in timed)),
        speed_up=math.exp(sum(map(math.log, known.values())) / len(known)) if known else None,
        worst=known.get(worst),
        worst_prompt=worst,
        acceptance=ratio(sum(run.accepted for run in mine), sum(run.tested for run in mine)),
        per_pass=ratio(sum(len(run.tokens) for run in mine), sum(run.passes for run in mine)) or 1.0,
        first_token=_median(run.first_token for run in mine) or 0.0,
        first_token_ratio=_median(waits),
    )


def _same_turn(a: Run, b: Run) -> bool:
    return (a.prompt, a.repeat) == (b.prompt, b.repeat)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
