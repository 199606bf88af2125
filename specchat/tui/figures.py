"""The engine's figures in words: segments of the status line and of the quiet line under a reply.

Contract: pure functions of their arguments. What was not measured is a dash, never a zero.
"""

from __future__ import annotations

from typing import Final

from textual.content import Content

from specchat.engine.policy import Mode, Speculation
from specchat.engine.replies import Reading
from specchat.engine.stats import Figures
from specchat.tui.fit import Segment
from specchat.worker.protocol import EngineInfo, Loading

DASH: Final = "–"
MODE_NAMES: Final = {"draft": "draft", "ngram": "n-gram", "plain": "plain"}
MODE_STYLES: Final = {"draft": "$text-success", "ngram": "$text-accent", "plain": "$text-warning"}
_ENDS: Final = {
    "cancelled": "stopped",
    "length": "reached the token limit",
    "context": "context full",
    "error": "interrupted",
    "refused": "no reply",  # an error before there was anything of it
    "elsewhere": "being written in another window",
}
_CONTEXT_WARNING: Final = 0.85  # of the context: from here the figure is coloured
_DIM: Final = "$foreground 60%"


def speed(value: float | None) -> str:
    """Tokens per second with three significant figures at most."""
    if value is None:
        return DASH
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}"


def percent(value: float | None) -> str:
    """A fraction as whole per cent."""
    return DASH if value is None else f"{value:.0%}"


def ratio(value: float | None, digits: int = 2) -> str:
    """A ratio with a fixed number of decimals."""
    return DASH if value is None else f"{value:.{digits}f}"


def seconds(value: float | None) -> str:
    """A short time: milliseconds matter below ten seconds only."""
    if value is None:
        return DASH
    return f"{value:.2f} s" if value < 9.995 else f"{value:.0f} s"


def wish(speculation: Speculation) -> str:
    """What was asked for, as the status line names it."""
    name = {Mode.NGRAM: "n-gram", Mode.OFF: "plain"}.get(speculation.mode, speculation.mode.value)
    return name if speculation.depth is None else f"{name} at depth {speculation.depth}"


def no_draft(speculation: Speculation, info: EngineInfo | None) -> str:
    """Why there is no draft model, where there should be one or it was asked for; else ""."""
    if info is None or info.draft is not None:
        return ""
    return info.draft_obstacle or ("there is no draft model here" if speculation.mode is Mode.DRAFT else "")


def why_not_as_asked(speculation: Speculation, figures: Figures, draft_obstacle: str) -> str:
    """One short sentence when the mode is not what was asked for, or plain while left to choose; else ""."""
    mode = speculation.mode
    if mode is Mode.OFF:
        return ""
    if mode is Mode.DRAFT and draft_obstacle:
        return draft_obstacle
    if figures.passes and figures.drafter != mode.value and (mode is not Mode.AUTO or figures.drafter == "plain"):
        return figures.reason
    return draft_obstacle if mode is Mode.AUTO else ""


def _figure(number: str, unit: str, style: str = "$foreground") -> Content:
    return Content.assemble((number, style), (unit, _DIM))


def _mode(speculation: Speculation, figures: Figures, live: bool) -> Segment:
    drafter = figures.drafter if figures.passes else ""
    if speculation.mode is Mode.OFF:
        drafter = "plain"
    style = MODE_STYLES.get(drafter, _DIM)
    name = MODE_NAMES.get(drafter or speculation.mode.value, speculation.mode.value)
    text = Content.assemble(("● " if live else "○ ", style), (name, f"{style} bold"))
    if speculation.mode is Mode.OFF:
        aside = " (off)"
    elif speculation.mode is Mode.AUTO and drafter:
        aside = " (auto)"
    elif drafter and speculation.mode.value != drafter:
        aside = f" (not {MODE_NAMES[speculation.mode.value]})"
    else:
        aside = ""
    short = text if speculation.mode is Mode.AUTO else None
    return Segment(Content.assemble(text, (aside, _DIM)), rank=0, short=short)


def context(used: int, size: int) -> Segment:
    """Context used, coloured when little is left, and then among the last to give way."""
    scarce = size > 0 and used >= _CONTEXT_WARNING * size
    style = "$text-warning" if scarce else "$foreground"
    return Segment(
        Content.assemble((f"{used:,}", style), (f" of {size:,} tokens" if size else " tokens", _DIM)),
        rank=2 if scarce else 4,
        short=Content.assemble((f"{used:,}", style), (f"/{size:,}" if size else "", _DIM)),
    )


def status(speculation: Speculation, figures: Figures, live: bool, n_ctx: int) -> list[Segment]:
    """The status line: of about the last two seconds while a reply runs, the whole reply's averages afterwards."""
    mode = _mode(speculation, figures, live)
    used = context(figures.context_used, figures.context_size or n_ctx)
    if not figures.passes:
        return [mode, used] if n_ctx else [mode]
    now = figures.tokens_per_second_now if live else figures.tokens_per_second
    faster = figures.speed_up if live else figures.average_speed_up
    acceptance = figures.acceptance_now if live else figures.acceptance
    per_pass = figures.tokens_per_pass_now if live else figures.tokens_per_pass
    return [
        mode,
        Segment(_figure(speed(now), " tok/s", "$foreground bold"), rank=1),
        Segment(
            _figure(percent(acceptance), " accepted"),
            rank=2,
            short=_figure(percent(acceptance), " acc."),
        ),
        Segment(_figure(f"{ratio(faster)}×", " plain"), rank=3),
        Segment(
            _figure(ratio(per_pass), " tokens/pass"),
            rank=5,
            short=_figure(ratio(per_pass), "/pass"),
        ),
        Segment(Content.assemble(("depth ", _DIM), (str(figures.depth or DASH), "$foreground")), rank=6),
        Segment(
            Content.assemble(("first token ", _DIM), (seconds(figures.time_to_first_token), "$foreground")),
            rank=7,
            short=Content.assemble(("first ", _DIM), (seconds(figures.time_to_first_token), "$foreground")),
        ),
        used,
    ]


def summary(figures: Figures, finish: str, drafters: tuple[str, ...], versions: str = "") -> list[Segment]:
    """The quiet line under a finished reply. `drafters` are those that were used, in order of appearance."""

    def quiet(text: str, rank: int) -> Segment:
        return Segment(Content(text), rank)

    parts = [quiet(text, rank) for text, rank in ((_ENDS.get(finish, ""), 0), (versions, 1)) if text]
    if not figures.passes:
        return parts
    tokens = "1 token" if figures.tokens == 1 else f"{figures.tokens:,} tokens"
    parts.append(quiet(" + ".join(MODE_NAMES.get(name, name) for name in drafters) or "plain", 3))
    parts += [quiet(tokens, 4), quiet(f"{speed(figures.tokens_per_second)} tok/s", 2)]
    if figures.is_compared:
        parts.append(quiet(f"{ratio(figures.average_speed_up)}× plain", 5))
    if figures.acceptance is not None:
        parts.append(quiet(f"{percent(figures.acceptance)} accepted", 6))
        parts.append(quiet(f"{ratio(figures.tokens_per_pass)} tokens/pass", 7))
    parts.append(quiet(f"first token {seconds(figures.time_to_first_token)}", 8))
    return parts


def elsewhere() -> Segment:
    """What the engine does while the reply is one of another conversation."""
    return Segment(Content.styled("writing in another conversation", _DIM), rank=1)


def unloaded() -> list[Segment]:
    """Where no models are loaded and nothing is going on."""
    return [
        Segment(Content.styled("models unloaded", "$foreground"), 0),
        Segment(Content.styled("the next message wakes them", _DIM), 1),
    ]


def bar(fraction: float, width: int) -> Content:
    """A thin progress bar."""
    filled = round(max(0.0, min(1.0, fraction)) * width)
    return Content.assemble(("━" * filled, "$primary"), ("━" * (width - filled), "$foreground 15%"))


def progress(event: Loading | Reading) -> list[Segment]:
    """Loading a model, or reading a prompt: words, and a bar where the extent is known."""
    if isinstance(event, Reading):
        words = f"reading {event.done:,} of {event.total:,} tokens"
        fraction: float | None = event.done / event.total if event.total else 1.0
        reused = f"{event.reused:,} already read" if event.reused else ""
    else:
        words, fraction, reused = event.stage, event.fraction, ""
    parts = [Segment(Content.styled(words, "$foreground"), 0)]
    if fraction is not None:
        parts.append(Segment(bar(fraction, 24), 2, short=bar(fraction, 10)))
        parts.append(Segment(Content.styled(f"{fraction:.0%}", _DIM), 1))
    if reused:
        parts.append(Segment(Content.styled(reused, _DIM), 3))
    return parts
