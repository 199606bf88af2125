"""Two small charts: what a pass costs for its width, and what drafting gains for its depth; as text, or as SVG.

Contract: values in, text out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

from specchat.lab.theory import Outlook

_BAR: Final = 40  # characters of the longest bar
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"
# SVG: one panel.
_WIDTH: Final = 440
_HEIGHT: Final = 300
_MARGIN: Final = 48


@dataclass(frozen=True, slots=True)
class Chart:
    """Points to be joined by a line, others to stand alone, and a horizontal line to compare them with."""

    title: str
    x: str  # what the axes are
    y: str
    line: tuple[tuple[float, float], ...]
    points: tuple[tuple[float, float], ...] = ()
    level: float | None = None


def cost_chart(target: Mapping[int, float], draft: Mapping[int, float]) -> Chart:
    """Milliseconds of a target pass for each width that was timed."""
    line = tuple((float(width), 1000.0 * seconds) for width, seconds in sorted(target.items()))
    step = f"; a step of the draft takes {1000.0 * draft[1]:.2f} ms" if 1 in draft else ""
    return Chart(f"Cost of a target pass{step}", "tokens in the pass", "ms", line, level=line[0][1])


def gain_chart(outlook: Outlook, measured: Mapping[int, float]) -> Chart:
    """Speed-up against depth: as the measured costs and acceptance predict, and as it was measured."""
    line = tuple((float(depth.depth), depth.speed_up) for depth in outlook.depths)
    points = tuple((float(depth), speed_up) for depth, speed_up in sorted(measured.items()))
    title = f"Speed-up against depth at {outlook.acceptance:.0%} acceptance"
    return Chart(title, "depth", "x plain", line, points, level=1.0)


# ---- text


def text(chart: Chart) -> Iterator[str]:
    """Horizontal bars, a line for each x."""
    measured = dict(chart.points)
    highest = max(y for _, y in (*chart.line, *chart.points))
    yield f"{chart.title} ({chart.y}; by {chart.x})"
    for x, y in sorted(dict(chart.line).items()):
        seen = f"   measured {measured[x]:.2f}" if x in measured else ""
        yield f"{x:4.0f} {y:9.2f} {_bar(y / highest)}{seen}"


def _bar(share: float) -> str:
    whole, eighths = divmod(round(share * _BAR * 8), 8)
    return "█" * whole + (_EIGHTHS[eighths] if eighths else "")


# ---- SVG


def svg(charts: Sequence[Chart]) -> str:
    """The charts one beside the other; axes begin at 0."""
    panels = "\n".join(
        f'<g transform="translate({i * _WIDTH} 0)">\n{_panel(chart)}\n</g>' for i, chart in enumerate(charts)
    )
    size = f'width="{_WIDTH * len(charts)}" height="{_HEIGHT}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {_WIDTH * len(charts)} {_HEIGHT}" '
        f'font-family="sans-serif" font-size="11">\n<rect {size} fill="white"/>\n{panels}\n</svg>\n'
    )


def _panel(chart: Chart) -> str:
    every = (*chart.line, *chart.points)
    right, top = max(x for x, _ in every), 1.1 * max(chart.level or 0.0, *(y for _, y in every))

    def place(x: float, y: float) -> str:
        across = _MARGIN + x / right * (_WIDTH - 2 * _MARGIN)
        return f"{across:.1f},{_HEIGHT - _MARGIN - y / top * (_HEIGHT - 2 * _MARGIN):.1f}"

    def line(start: tuple[float, float], end: tuple[float, float], style: str) -> str:
        (x1, y1), (x2, y2) = (place(*point).split(",") for point in (start, end))
        return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" {style}/>'

    def words(x: float, y: float, text: str, style: str) -> str:
        left, height = place(x, y).split(",")
        return f'<text x="{left}" y="{height}" {style}>{escape(text)}</text>'

    middle = f'x="{_WIDTH / 2}" text-anchor="middle"'
    parts = [
        f'<text {middle} y="22" font-size="13">{escape(chart.title)}</text>',
        f'<text {middle} y="{_HEIGHT - 12}">{escape(chart.x)}</text>',
        f'<text x="{_MARGIN}" y="{_MARGIN - 8}" text-anchor="middle">{escape(chart.y)}</text>',
        line((0, 0), (right, 0), 'stroke="black"'),
        line((0, 0), (0, top), 'stroke="black"'),
        *(words(0, y, f"{y:g}", 'dx="-6" dy="4" text-anchor="end"') for y in _ticks(top)),
        *(words(x, 0, f"{x:g}", 'dy="15" text-anchor="middle"') for x in _ticks(right)),
    ]
    if chart.level is not None:
        parts.append(line((0, chart.level), (right, chart.level), 'stroke="gray" stroke-dasharray="4 3"'))
    joined = " ".join(place(*point) for point in chart.line)
    parts.append(f'<polyline points="{joined}" fill="none" stroke="#1f6feb" stroke-width="2"/>')
    for point in chart.points:
        x, y = place(*point).split(",")
        parts.append(f'<circle cx="{x}" cy="{y}" r="4" fill="#d1242f"/>')
    return "\n".join(parts)


def _ticks(highest: float) -> list[float]:
    """Four to nine round numbers up to `highest`."""
    step = 10.0 ** len(str(int(highest)))
    for divisor in (2.0, 2.5, 2.0) * 4:
        if highest / step >= 4.0:
            break
        step /= divisor
    return [step * i for i in range(1, int(highest / step) + 1)]
