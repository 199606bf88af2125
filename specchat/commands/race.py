"""`specchat bench --race PROMPT`: two columns on a terminal; elsewhere the reply and the figures.

Plain streams on the left; then speculation streams on the right while the left replays at its recorded pace.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import click
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from specchat.commands import console
from specchat.engine.replies import ReplyOptions
from specchat.engine.stats import ratio
from specchat.lab import prompts, race
from specchat.lab.lanes import Lane, unsteady
from specchat.lab.rig import Rig
from specchat.tui.text import clean

MOST: Final = 200  # tokens
_REDRAW: Final = 0.1  # seconds


def run(rig: Rig, prompt: str, mode: str, options: ReplyOptions, as_json: bool) -> None:
    """Race plain against `mode`. Raises Cancelled."""
    sampling, n = options.sampling, min(MOST, options.max_tokens or MOST)
    policy = race.policy(rig, rig.calibrate(), rig.prompt(prompts.WARM_UP.text), sampling)
    asked = rig.prompt(prompt)
    plain, other = Lane("plain"), Lane(mode)
    lanes = tuple(race.run(lane, rig, policy, asked, sampling, n) for lane in (plain, other))
    if sys.stdout.isatty() and not as_json:
        _watch(rig, plain, other, lanes[0], lanes[1])
    else:
        for lane in lanes:
            for _ in lane:
                pass
    outcome = f"{race.outcome(rig, asked, plain, other, sampling)} {unsteady(plain, other)}".rstrip()
    if as_json:
        click.echo(json.dumps(_document(rig, plain, other, outcome), ensure_ascii=False))
        return
    if not sys.stdout.isatty():
        click.echo(rig.text(other.tokens).strip() + "\n")
    click.echo("\n".join(console.columns(_rows(plain, other), right={1, 2, 3, 4, 5})))
    click.echo(outcome)


def _watch(rig: Rig, plain: Lane, other: Lane, left: Iterator[Lane], right: Iterator[Lane]) -> None:
    screen = Console()
    with console.unwinding(), Live(console=screen, auto_refresh=False, vertical_overflow="crop") as live:
        drawn = 0.0
        for _ in left:
            if time.monotonic() - drawn >= _REDRAW:
                drawn = time.monotonic()
                live.update(_columns(rig, screen, plain, other), refresh=True)
        started = time.perf_counter()
        for _ in right:
            if time.monotonic() - drawn >= _REDRAW:
                drawn = time.monotonic()
                live.update(_columns(rig, screen, plain.until(other.seconds), other), refresh=True)
        # Whoever is slower finishes alone: plain's replay goes on at its pace.
        while (past := plain.until(time.perf_counter() - started)).passes < plain.passes:
            live.update(_columns(rig, screen, past, other), refresh=True)
            time.sleep(_REDRAW)
        live.update(_columns(rig, screen, plain, other), refresh=True)


def _columns(rig: Rig, screen: Console, *lanes: Lane) -> Table:
    grid = Table.grid(expand=True)
    rows = max(4, screen.height - 6)
    for _ in lanes:
        grid.add_column(ratio=1)
    grid.add_row(*(_panel(rig, lane, rows, screen.width // 2 - 4) for lane in lanes))
    return grid


def _panel(rig: Rig, lane: Lane, rows: int, width: int) -> Panel:
    text = Text(clean(rig.text(lane.tokens)).strip())
    lines = text.wrap(Console(width=max(10, width)), max(10, width))
    rate = "" if lane.rate is None else f"{lane.rate:.1f} tokens/s"
    title = f"{lane.mode}  {lane.seconds:.1f} s  {rate}"
    return Panel(Text("\n").join(lines[-rows:]), title=Text(title), height=rows + 2)


def _rows(*lanes: Lane) -> Iterator[tuple[str, ...]]:
    yield "", "SECONDS", "TOKENS/S", "SPEED-UP", "PASSES", "ACCEPTED"
    plain = lanes[0].rate
    for lane in lanes:
        accepted = ratio(lane.accepted, lane.tested)
        yield (
            lane.mode,
            f"{lane.seconds:.2f}",
            "-" if lane.rate is None else f"{lane.rate:.1f}",
            "-" if lane.rate is None or not plain else f"{lane.rate / plain:.2f}",
            f"{lane.passes}",
            "-" if accepted is None else f"{accepted:.0%}",
        )


def _document(rig: Rig, plain: Lane, other: Lane, outcome: str) -> dict[str, Any]:
    lanes = {
        lane.mode: {
            "text": rig.text(lane.tokens),
            "tokens": len(lane.tokens),
            "seconds": lane.seconds,
            "tokens_per_second": lane.rate,
            "passes": lane.passes,
            "tested": lane.tested,
            "accepted": lane.accepted,
        }
        for lane in (plain, other)
    }
    return {"lanes": lanes, "identical": plain.tokens == other.tokens, "outcome": outcome}
