"""`specchat explain`: why a depth is the best one, with this pair's and this machine's own numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from specchat.commands.options import Number, greedy_unless_told, model_options
from specchat.errors import SpecchatError

if TYPE_CHECKING:
    from specchat.lab.explain import Findings
    from specchat.lab.theory import Outlook

_SHOWN: Final = 8  # depths in the table
_PROMPTS: Final = ("chat", "code", "rewrite", "story")


@click.command("explain")
@model_options
@greedy_unless_told
@click.option(
    "-n", "--max-tokens", metavar="N", type=click.IntRange(2), default=64, show_default=True, help="Tokens of a reply."
)
@click.option(
    "--acceptance", metavar="A", type=Number(0, 1), help="What if it were this? Then only costs are measured."
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object.")
def command(name: str | None, acceptance: float | None, as_json: bool, **given: Any) -> None:
    """Explain what speculation can gain with your pair on your machine.

    Measures how often the draft model is right on a few prompts and what its steps and the target's passes cost, and
    works out the tokens per pass, the speed-up and the break-even point of every depth.
    """
    from specchat.commands import console, opening
    from specchat.commands.options import Options
    from specchat.lab import explain, prompts, rig, theory

    launch = opening.launch(Options.among(given), name)
    if launch.draft is None:
        raise SpecchatError(f"{launch.name} has no draft model to explain: name one with -md, or a pair that has one")
    chosen = [prompt for prompt in prompts.BENCH if prompt.name in _PROMPTS] if acceptance is None else []
    found: list[Findings] = []
    with rig.opened(launch.target, launch.draft, launch.settings) as opened:
        console.say(opened.reasons)
        console.follow(explain.measured(opened, chosen, launch.options, found))
    if acceptance is None and not found[0].tested:
        raise SpecchatError("the replies were too short to judge the draft by: ask for longer ones with -n")
    view = theory.outlook(found[0].pooled if acceptance is None else acceptance, found[0].costs)
    if as_json:
        click.echo(json.dumps(document(view, found[0])))
    else:
        click.echo("\n".join(console.wrapped(_lines(view, found[0]))))


def document(view: Outlook, found: Findings) -> dict[str, Any]:
    """Everything, for `--json`."""
    depths = [asdict(depth) | {"speed_up": depth.speed_up} for depth in view.depths]
    return {
        "acceptance": view.acceptance,
        "ceiling": view.ceiling,
        "best_depth": view.best.depth,
        "depths": depths,
        "draft_step_passes": view.step,
        "measured": asdict(found),
    }


def _lines(view: Outlook, found: Findings) -> Iterator[str]:
    from specchat.commands import console
    from specchat.lab import explain, plots

    a = view.acceptance
    if found.tested:
        each = ", ".join(f"{name} {rate:.0%}" for name, rate in found.acceptance)
        yield f"Acceptance a = {a:.2f}: of {found.tested:,} proposals tested, so many were accepted ({each})."
    else:
        yield f"Acceptance a = {a:.2f}, as given."
    yield f"A step of the draft costs {view.step:.2f} of a plain pass."
    yield ""
    yield from plots.text(plots.cost_chart(found.costs.target, found.costs.draft))
    yield ""
    yield "Expected tokens per pass at depth k: (1 - a^(k+1)) / (1 - a)"
    rows = [
        (
            f"{d.depth}",
            f"{d.expected:.2f}",
            f"{d.passes:.2f}",
            f"{d.speed_up:.2f}",
            f"{d.break_even:.0%}" if d.break_even < 1.0 else "never",
            "best" if d == view.best else "",
        )
        for d in view.depths[:_SHOWN]
    ]
    headers = ("DEPTH", "TOKENS PER PASS", "COST IN PASSES", "SPEED-UP", "BREAK-EVEN", "")
    yield from console.columns(rows, headers, frozenset(range(5)))
    ceiling = "none: every proposal was accepted" if view.ceiling is None else f"{view.ceiling:.2f}"
    yield f"Ceiling of tokens per pass, 1 / (1 - a): {ceiling}"
    yield ""
    yield from explain.sentences(view, found.costs)
