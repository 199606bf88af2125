"""A benchmark's report: tables, charts, one JSON object."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from typing import Any, Final

from specchat.commands import console
from specchat.lab import plots, theory
from specchat.lab.bench import Headline, Report, Row
from specchat.lab.peer import PeerRow
from specchat.lab.rig import Rig
from specchat.lab.runs import PLAIN, Run
from specchat.units import format_memory

_HEADERS: Final = ("PROMPT", "MODE", "TOKENS/S", "SPEED-UP", "ACCEPTED", "PER PASS", "FIRST TOKEN", "")
_RIGHT: Final = frozenset(range(2, 7))
# Load beyond which the figures are somebody else's too.
_BUSY: Final = 0.5


def lines(report: Report, rig: Rig) -> Iterator[str]:
    """The tables."""
    target, draft = rig.target.model, rig.draft.model if rig.draft else None
    yield f"target  {target.name}, {target.path.name}"
    yield f"draft   {f'{draft.name}, {draft.path.name}' if draft else 'none'}"
    yield f"context {rig.target.n_ctx:,} tokens, {rig.target.threads} threads"
    if report.load is not None and report.load > _BUSY * (os.cpu_count() or 1):
        yield (
            f"This machine was busy (load {report.load:.1f}): a speed-up of few repeats means little then; "
            "ACCEPTED and PER PASS are what they are."
        )
    yield ""
    yield from console.columns(_rows(report.rows), _HEADERS, _RIGHT)
    yield ""
    yield from console.columns(map(_headline, report.headlines), _SUMMARY, _SUMMARY_RIGHT)
    yield ""
    if report.left_out:
        yield f"Not counted below the table, as a reply loops: {', '.join(report.left_out)}."
    yield "Tokens/s after the first token; speed-up against plain of the same repeat; medians of the repeats."
    yield "Over all prompts: tokens by the seconds that they took, and the geometric mean of the speed-ups."
    yield f"Peak memory {format_memory(report.peak_memory)}."


_SUMMARY: Final = ("ALL", "TOKENS/S", "SPEED-UP", "WORST", "ACCEPTED", "PER PASS", "FIRST TOKEN", "AGAINST PLAIN")
_SUMMARY_RIGHT: Final = frozenset((1, 2, 4, 5, 6, 7))


def _rows(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    before = ""
    for row in rows:
        yield (
            row.prompt if row.prompt != before else "",
            row.mode,
            _figure(row.rate, ".1f"),
            _figure(row.speed_up, ".2f"),
            _figure(row.acceptance, ".0%"),
            f"{row.per_pass:.2f}",
            f"{row.first_token:.2f} s",
            "loops" if row.loops else "",
        )
        before = row.prompt


def _headline(line: Headline) -> tuple[str, ...]:
    worst = f"{line.worst:.2f} ({line.worst_prompt})" if line.worst is not None and line.mode != PLAIN else "-"
    return (
        line.mode,
        _figure(line.rate, ".1f"),
        _figure(line.speed_up, ".2f"),
        worst,
        _figure(line.acceptance, ".0%"),
        f"{line.per_pass:.2f}",
        f"{line.first_token:.2f} s",
        _figure(line.first_token_ratio, ".2f"),
    )


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def charts(report: Report) -> list[plots.Chart]:
    """What a pass costs; and what each depth gains, where a draft proposed anything."""
    costs = report.costs
    found = [plots.cost_chart(costs.target, costs.draft)]
    if report.acceptance is not None and costs.draft:
        measured = {
            int(line.mode.partition(":")[2]): line.speed_up
            for line in report.headlines
            if line.mode.startswith("draft:") and line.speed_up is not None
        }
        found.append(plots.gain_chart(theory.outlook(report.acceptance, costs), measured))
    return found


def plot(report: Report) -> Iterator[str]:
    """The charts for the terminal."""
    for chart in charts(report):
        yield ""
        yield from plots.text(chart)


def svg(report: Report) -> str:
    """The charts as a picture."""
    return plots.svg(charts(report))


def document(report: Report, rig: Rig) -> dict[str, Any]:
    """Everything, for `--json`. Runs without their tokens, which are a model's own numbers."""
    kept = [field.name for field in fields(Run) if field.name != "tokens"]
    runs = [{name: getattr(run, name) for name in kept} | {"tokens": len(run.tokens)} for run in report.runs]
    return {
        "target": str(rig.target.model.path),
        "draft": str(rig.draft.model.path) if rig.draft else None,
        "n_ctx": rig.target.n_ctx,
        "threads": rig.target.threads,
        "costs": asdict(report.costs),
        "acceptance": report.acceptance,
        "peak_memory_bytes": report.peak_memory,
        "load": report.load,
        "left_out": report.left_out,
        "headlines": [asdict(line) for line in report.headlines],
        "prompts": [asdict(row) for row in report.rows],
        "runs": runs,
    }


def peer_lines(rows: Sequence[PeerRow]) -> Iterator[str]:
    """The comparison with llama-cpp-python's own loop."""
    cells = [
        (r.prompt, f"{r.tokens}", f"{r.own:.1f}", f"{r.peer:.1f}", f"{r.ratio:.3f}", "" if r.same else "other text")
        for r in rows
    ]
    yield from console.columns(
        cells, ("PROMPT", "TOKENS", "SPECCHAT", "LLAMA-CPP-PYTHON", "RATIO", ""), frozenset(range(1, 5))
    )
    yield "Plain decoding, greedy, the same file, threads and context; tokens/s after the first; medians."
