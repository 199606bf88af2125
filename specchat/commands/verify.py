"""`specchat verify`: is the output what the target alone would have written, on this machine?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from specchat.commands.options import model_options
from specchat.errors import SpecchatError

if TYPE_CHECKING:
    from specchat.lab.verify import Verdict

NOT_LOSSLESS: Final = 3  # 1 and 2 are what every command ends with where it could not do its work


@click.command("verify")
@model_options
@click.option(
    "-n", "--max-tokens", metavar="N", type=click.IntRange(2), default=64, show_default=True, help="Tokens of a text."
)
@click.option(
    "--prompts", metavar="FILE", type=click.Path(path_type=Path), help="Prompts of your own, with lines of --- between."
)
@click.option(
    "-s", "--seed", metavar="N", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Random seed."
)
@click.option("--json", "as_json", is_flag=True, help="Print everything found as one JSON object.")
def command(name: str | None, max_tokens: int, prompts: Path | None, seed: int, as_json: bool, **given: Any) -> None:
    """Check that speculation changes nothing, with your pair on your machine.

    Measures how far llama.cpp's own logits depend on how many tokens share a pass; compares greedy texts of every
    drafter and depth with plain decoding's; tests at temperature 1 that tokens are drawn from the target's
    distribution; checks exact mode and what it costs. Exit status 3 if something is not lossless, 1 or 2 if it could
    not be checked.
    """
    from specchat.commands import console, opening
    from specchat.commands.options import Options
    from specchat.lab import prompts as known
    from specchat.lab import rig
    from specchat.lab.verify import Verification

    chosen = known.VERIFY if prompts is None else known.from_file(prompts)
    launch = opening.launch(Options.among(given), name)
    with rig.opened(launch.target, launch.draft, replace(launch.settings, exact=False)) as opened:
        console.say(opened.reasons)
        if opened.target.rollback_limit is not None:
            obstacle = opened.target.model.rollback_obstacle
            raise SpecchatError(f"{launch.target.name} cannot be verified, which takes many tokens back: {obstacle}")
        verification = Verification(opened, chosen, max_tokens, seed)
        console.follow(verification.run())
        verdict = verification.verdict()
    if as_json:
        click.echo(json.dumps(document(verdict), ensure_ascii=False))
    else:
        rows = list(_lines(verdict))
        indent = max(len(name) for name, _ in rows) + 2
        click.echo("\n".join(console.wrapped(console.columns(rows), indent)))
    if verdict.failures:
        click.echo(f"specchat: not lossless here: {verdict.failures[0]}", err=True)
        click.get_current_context().exit(NOT_LOSSLESS)


def document(verdict: Verdict) -> dict[str, Any]:
    """Everything, for `--json`."""
    derived = {"bound": verdict.bound, "failures": verdict.failures, "passed": not verdict.failures}
    return asdict(verdict) | derived


def _lines(v: Verdict) -> Iterator[tuple[str, str]]:
    """What was checked, and what was found."""
    noise = v.noise
    if noise.rows:
        lengths, widths = sorted({n.length for n in v.noises}), sorted({n.width for n in v.noises})
        within = f"{lengths[0]:,} to {lengths[-1]:,}" if len(lengths) > 1 else f"{lengths[0]:,}"
        yield "width noise", f"{noise.rows} rows alone and {', '.join(map(str, widths))} at a time, {within} tokens in"
        yield "", f"the same bits in {noise.identical}; another likeliest token in {noise.flips}"
        yield "", f"total variation {noise.mean_variation:.4f} on average, {noise.max_variation:.4f} at most"
        yield "", f"logits up to {noise.max_difference:.3g} apart"
    else:
        yield "width noise", "not measured: the context is too short"
    yield "", ""
    same = len(v.texts) - len(v.differing)
    yield "temperature 0", f"{same} of {len(v.texts)} texts of every drafter and depth are plain's, token for token"
    for text in v.differing:
        close = f"where two logits are {text.gap:.3g} apart (noise explains up to {v.bound:.3g})"
        yield "", f"{text.mode} on {text.prompt} differs from token {text.differs_at} on, {close}"
    yield "", ""
    for i, (mode, check) in enumerate(v.sampled):
        yield (
            "" if i else "temperature 1",
            f"{mode}, {check.order}: {check.statistic:.1%} off over {check.tokens:,} tokens, p = {check.p_value:.2g} "
            f"(from {check.detects:.1%} on it would have failed)",
        )
    yield "", ""
    yield from _exact(v)
    yield "", ""
    yield (
        "verdict",
        "FAIL" if v.failures else "lossless: nothing here differs from plain decoding by more than the noise",
    )
    for failure in v.failures:
        yield "", failure


def _exact(v: Verdict) -> Iterator[tuple[str, str]]:
    if v.exact_noise is None:
        yield "exact mode", v.exact_obstacle or "not checked"
        return
    same = sum(text.differs_at is None for text in v.exact_texts)
    yield "exact mode", f"{v.exact_noise.identical} of {v.exact_noise.rows} rows the same bits at every width"
    yield "", f"{same} of {len(v.exact_texts)} texts are plain's, token for token"
    if v.exact_price is not None:
        yield "", f"a pass over one token takes {v.exact_price:.2f} x the usual time"
