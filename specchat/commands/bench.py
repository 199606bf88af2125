"""`specchat bench`: what speculation gains on this machine, prompt by prompt."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specchat.commands.options import greedy_unless_told, model_options
from specchat.errors import SpecchatError

if TYPE_CHECKING:
    from specchat.engine.replies import ReplyOptions
    from specchat.lab.bench import Report
    from specchat.lab.prompts import Prompt
    from specchat.lab.rig import Rig


@click.command("bench")
@model_options
@click.option(
    "--modes",
    metavar="LIST",
    default="plain,draft,ngram,auto",
    show_default=True,
    help="What to compare, with commas between; draft:3 and ngram:15 have a fixed depth.",
)
@click.option("--depth", metavar="K", type=click.IntRange(1, 64), help="A fixed depth for draft and ngram.")
@greedy_unless_told
@click.option(
    "-n", "--max-tokens", metavar="N", type=click.IntRange(2), default=128, show_default=True, help="Tokens of a reply."
)
@click.option(
    "--repeats",
    metavar="N",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Replies to each prompt in each mode.",
)
@click.option(
    "--prompts", metavar="FILE", type=click.Path(path_type=Path), help="Prompts of your own, with lines of --- between."
)
@click.option("--only", metavar="NAME", multiple=True, help="Only the prompt of this name; may be repeated.")
@click.option("--exact", is_flag=True, help="In exact mode.")
@click.option("--plot", is_flag=True, help="Draw what a pass costs, and speed-up against depth.")
@click.option("--svg", metavar="FILE", type=click.Path(path_type=Path), help="The same as an SVG picture.")
@click.option("--json", "as_json", is_flag=True, help="Print everything measured as one JSON object.")
@click.option("--against-llama-cpp-python", "peer", is_flag=True, help="Compare plain with Llama.create_completion.")
@click.option("--race", metavar="PROMPT", help="Write one reply plain and then speculatively, side by side.")
def command(name: str | None, **given: Any) -> None:
    """Measure speed in several modes, alternating them within one run.

    A fixed set of prompts is answered plain, with the draft model, with n-gram look-up and as auto decides.
    Speed-up is against plain in the same run. Replies that loop are left out of the headline.
    """
    from specchat.commands import console, opening
    from specchat.commands.options import Options
    from specchat.lab import rig

    if given["race"] is not None and not given["race"].strip():
        raise click.UsageError("--race needs a prompt to race on.")
    modes = _modes(given["modes"], given["depth"])
    prompts = _prompts(given["prompts"], given["only"])
    launch = opening.launch(Options.among(given), name)
    with rig.opened(launch.target, launch.draft, launch.settings) as opened:
        console.say(opened.reasons)
        if given["race"] is not None:
            from specchat.commands import race

            # The first mode that is not plain; auto unless something else was asked for.
            mode = next((mode for mode in modes if mode != "plain"), "auto") if _asked("modes") else "auto"
            race.run(opened, given["race"], mode, launch.options, given["as_json"])
        elif given["peer"]:
            _peer(opened, prompts, launch.options, given)
        else:
            _bench(opened, prompts, modes, launch.options, given)


def _asked(option: str) -> bool:
    """Whether the option was typed, not left at its default."""
    source = click.get_current_context().get_parameter_source(option)
    return source is click.core.ParameterSource.COMMANDLINE


def _modes(text: str, depth: int | None) -> tuple[str, ...]:
    """The names that were typed, the drafters' with `depth` where they have none of their own."""
    from specchat.lab import runs

    names = [name.strip() for name in text.split(",") if name.strip()]
    if depth is not None:
        names = [f"{name}:{depth}" if name in ("draft", "ngram") else name for name in names]
    for name in names:
        runs.speculation(name)
    return tuple(names)


def _prompts(path: Path | None, only: tuple[str, ...]) -> tuple[Prompt, ...]:
    from specchat.lab import prompts

    known = prompts.BENCH if path is None else prompts.from_file(path)
    for name in only:
        if name not in {prompt.name for prompt in known}:
            raise SpecchatError(f"there is no prompt {name}: there is {', '.join(prompt.name for prompt in known)}")
    return tuple(prompt for prompt in known if not only or prompt.name in only)


def _bench(
    rig: Rig, prompts: tuple[Prompt, ...], modes: tuple[str, ...], options: ReplyOptions, given: dict[str, Any]
) -> None:
    from specchat.commands import console
    from specchat.lab.bench import Bench

    possible = [mode for mode in modes if rig.draft is not None or not mode.startswith("draft")]
    bench = Bench(rig, prompts, possible, options, given["repeats"])
    try:
        console.follow(bench.run())
    finally:  # what was measured before a Ctrl+C is worth showing
        report = bench.report()
        if report.rows:
            _show(report, rig, given)


def _show(report: Report, rig: Rig, given: dict[str, Any]) -> None:
    from specchat.commands import bench_view, console

    if given["svg"] is not None:
        _write(given["svg"], bench_view.svg(report))
    if given["as_json"]:
        click.echo(json.dumps(bench_view.document(report, rig), ensure_ascii=False))
        return
    click.echo("\n".join(console.wrapped(bench_view.lines(report, rig))))
    if given["plot"]:
        click.echo("\n".join(bench_view.plot(report)))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise SpecchatError(f"cannot write {path}: {error.strerror}") from error


def _peer(rig: Rig, prompts: tuple[Prompt, ...], options: ReplyOptions, given: dict[str, Any]) -> None:
    from specchat.commands import bench_view, console
    from specchat.lab.peer import Comparison

    comparison = Comparison(rig, prompts, options.max_tokens or 128, given["repeats"])
    console.follow(comparison.run())
    rows = comparison.rows()
    if given["as_json"]:
        click.echo(json.dumps([asdict(row) for row in rows], ensure_ascii=False))
    else:
        click.echo("\n".join(bench_view.peer_lines(rows)))
