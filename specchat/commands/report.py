"""A reply's figures in words for `--stats`, and all of it as one JSON object for `--json`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

from specchat.commands import console
from specchat.engine.stats import Figures
from specchat.session import Launch, Reply
from specchat.worker.protocol import EngineInfo


def lines(figures: Figures) -> list[str]:
    """A name and a figure on each line; what was not measured is left out."""
    return console.columns(_rows(figures))


def _rows(f: Figures) -> Iterator[tuple[str, str]]:
    if f.tokens_per_second is not None:
        tokens = "1 token" if f.tokens == 1 else f"{f.tokens:,} tokens"
        yield "speed", f"{f.tokens_per_second:.1f} tokens/s ({tokens} in {f.seconds:.2f} s)"
    if f.is_compared:
        faster = "–" if f.average_speed_up is None else f"{f.average_speed_up:.2f}"
        yield "speed-up", f"{faster} x plain ({f.plain_tokens_per_second:.1f} tokens/s)"
    yield "drafter", f"{f.drafter} at depth {f.depth}" if f.depth else f.drafter
    if f.reason:
        yield "because", f.reason
    if f.acceptance is not None:
        yield "accepted", f"{f.acceptance:.0%} ({f.accepted:,} of {f.tested:,} tested; {f.proposed:,} proposed)"
    if f.tokens_per_pass is not None:
        passes = "1 pass" if f.passes == 1 else f"{f.passes:,} passes"
        yield "per pass", f"{f.tokens_per_pass:.2f} tokens ({passes})"
    if f.time_to_first_token is not None:
        yield "first token", f"{f.time_to_first_token:.2f} s"
    speed = f" at {f.prompt_tokens_per_second:,.0f} tokens/s" if f.prompt_tokens_per_second is not None else ""
    yield "prompt", f"{f.prompt_tokens:,} tokens{speed}"
    yield "context", f"{f.context_used:,} of {f.context_size:,} tokens"


def document(launch: Launch, info: EngineInfo | None, reply: Reply, error: str) -> str:
    """One JSON object on one line. `finish` is "" where an error or Ctrl+C cut the reply short."""
    models = {
        "pair": launch.name,
        "target": info.target.name if info else "",
        "target_file": launch.target.name,
        "draft": info.draft.name if info and info.draft else None,
        "draft_file": launch.draft.name if info and info.draft and launch.draft else None,
        "draft_obstacle": info.draft_obstacle if info else "",
    }
    speculation = launch.settings.speculation
    return json.dumps(
        {
            "reply": reply.answer,
            "reasoning": reply.reasoning,
            "finish": reply.finish,
            "error": error,
            **models,
            "speculation": speculation.mode.value,
            "notices": [*(info.notices if info else ()), *reply.notices],
            "figures": _averaged(reply.figures),
        },
        ensure_ascii=False,
    )


def _averaged(figures: Figures) -> dict[str, object]:
    """The figures with the whole reply's speed-up, as its speed is; that of the last seconds under another name."""
    return asdict(figures) | {"speed_up": figures.average_speed_up, "speed_up_now": figures.speed_up}
