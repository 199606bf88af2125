"""The metrics panel's content, and the record of speeds behind its sparkline.

Contract: `Speeds.add` is called at each update of a running reply; `rows` is a pure function of its arguments.
What is not called "now" is the whole reply's figure.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from textual.content import Content

from specchat.engine.policy import Speculation
from specchat.engine.stats import Figures
from specchat.tui import figures as words
from specchat.units import format_bytes
from specchat.worker.protocol import EngineInfo

_BARS: Final = "▁▂▃▄▅▆▇█"
_KEPT: Final = 120
_DIM: Final = "$foreground 60%"


@dataclass(slots=True)
class Speeds:
    """The latest speeds with the drafter at work, the oldest first."""

    samples: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def add(self, figures: Figures) -> None:
        """Note the speed of this moment."""
        if figures.tokens_per_second_now is not None:
            self.samples.append((figures.tokens_per_second_now, figures.drafter))

    def sparkline(self, width: int) -> Content:
        """The last `width` speeds as bars in their drafters' colours, and below them a mark at each switch."""
        shown = list(self.samples)[-width:]
        most = max((speed for speed, _ in shown), default=0.0)
        if not most:
            return Content.styled("nothing measured yet", _DIM)
        bars = [
            (_BARS[min(len(_BARS) - 1, int(speed / most * len(_BARS)))], words.MODE_STYLES.get(drafter, _DIM))
            for speed, drafter in shown
        ]
        drafters = [drafter for _, drafter in shown]
        marks = "".join(
            " " if before == now else "╵" for before, now in zip(drafters[:1] + drafters, drafters, strict=False)
        )
        return Content.assemble(*bars, "\n", (marks, _DIM))


def rows(
    speculation: Speculation, figures: Figures, info: EngineInfo | None, speeds: Speeds, reason: str, width: int
) -> Content:
    """The panel."""
    f = figures
    unread = f.prompt_tokens - f.prompt_reused
    table = [
        ("mode", words.MODE_NAMES.get(f.drafter, "–") if f.passes else "–"),
        ("asked for", words.wish(speculation)),
        ("", ""),
        ("now", f"{words.speed(f.tokens_per_second_now)} tok/s"),
        ("average", f"{words.speed(f.tokens_per_second)} tok/s"),
        ("plain", f"{words.speed(f.plain_tokens_per_second)} tok/s"),
        ("speed-up now", f"{words.ratio(f.speed_up)}×"),
        ("speed-up", f"{words.ratio(f.average_speed_up)}×"),
        ("", ""),
        ("accepted", f"{f.accepted:,} of {f.tested:,} tested"),
        ("acceptance rate", words.percent(f.acceptance)),
        ("tokens a pass", words.ratio(f.tokens_per_pass)),
        ("expected", words.ratio(f.expected_per_pass)),
        ("ceiling", words.ratio(f.ceiling)),
        ("depth", str(f.depth or words.DASH)),
        ("", ""),
        ("first token", words.seconds(f.time_to_first_token)),
        ("prompt", f"{unread:,} + {f.prompt_reused:,} kept" if f.prompt_tokens else words.DASH),
        ("prompt speed", f"{words.speed(f.prompt_tokens_per_second)} tok/s"),
        ("context", f"{f.context_used:,} of {f.context_size or (info.n_ctx if info else 0):,}"),
    ]
    if info is not None:
        table += [("", ""), ("target", format_bytes(info.target.size_bytes))]
        table += [("draft", format_bytes(info.draft.size_bytes))] if info.draft else []
        table += [("threads", str(info.threads)), ("on", ", ".join(info.devices) or "CPU")]
    lines = [_row(name, value, width) for name, value in table]
    if reason:
        lines += [Content(), Content.styled(reason, _DIM)]
    return Content("\n").join([speeds.sparkline(width), Content(), *lines])


def _row(name: str, value: str, width: int) -> Content:
    gap = max(1, width - len(name) - len(value))
    return Content.assemble((name, _DIM), " " * gap, value)
