"""Line charts below one another as an SVG, for light and for dark pages.

WIDTH       PLOT from LEFT on, the names of the lines to its right
a chart     its title, then HEIGHT of lines from 0 up to a round number above the largest value
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from xml.sax.saxutils import escape

WIDTH, LEFT, PLOT, HEIGHT, ROW, TOP = 860, 56, 640, 90, 136, 52
POINTS_MAX = 360  # of a line; each point is the median of its neighbours
STYLE = """
svg { background: #fff; font: 12px system-ui, sans-serif }
text { fill: #333 } .title { font-size: 15px } .chart { font-weight: 600 } .axis { fill: #777 }
polyline { fill: none; stroke-width: 1.3; stroke-linejoin: round }
.grid { stroke: #ddd } .mark { stroke: #999; stroke-dasharray: 2 3 }
.c0 { stroke: #1f6fd0 } .c1 { stroke: #d9660a } .c2 { stroke: #2a9134 } .c3 { stroke: #a3369f }
.c4 { stroke: #8a8a8a }
@media (prefers-color-scheme: dark) {
svg { background: #16181c } text { fill: #ddd } .axis { fill: #999 } .grid { stroke: #33363c }
.mark { stroke: #777 } .c0 { stroke: #6aa9f5 } .c1 { stroke: #f5a35c } .c2 { stroke: #6fcb78 }
.c3 { stroke: #d98bd6 } .c4 { stroke: #9a9a9a } }
"""


def svg(
    title: str,
    x: Sequence[float],
    charts: Mapping[str, Mapping[str, Sequence[float]]],
    marks: Sequence[float],
) -> str:
    """Return charts by title, each with its lines by name, over the minutes ``x``. ``marks``: the
    positions of thin vertical lines.
    """
    height = TOP + ROW * len(charts)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}">']
    parts += [f"<style>{STYLE}</style>", _text(LEFT, 24, "title", title)]
    for number, (name, lines) in enumerate(charts.items()):
        parts += _chart(TOP + ROW * number, name, x, lines, marks)
    return "\n".join([*parts, "</svg>\n"])


def _chart(
    top: float,
    name: str,
    x: Sequence[float],
    lines: Mapping[str, Sequence[float]],
    marks: Sequence[float],
) -> Iterator[str]:
    base, x_end, x_step = top + HEIGHT + 12, max(x), _scale(max(x))[0]
    y_step, y_end = _scale(max(max(line) for line in lines.values()))
    yield _text(LEFT, top, "chart", name)
    for number in range(round(y_end / y_step) + 1):
        y = base - HEIGHT * number * y_step / y_end
        yield _line("grid", LEFT, y, LEFT + PLOT, y)
        yield _text(LEFT - 6, y + 4, "axis", f"{number * y_step:,.10g}", "end")
    for number in range(int(x_end / x_step) + 1):
        at = LEFT + PLOT * number * x_step / x_end
        yield _text(at, base + 15, "axis", f"{number * x_step:.10g} min", "middle")
    for mark in marks:
        at = LEFT + PLOT * mark / x_end
        yield _line("mark", at, base - HEIGHT, at, base)
    for number, (label, values) in enumerate(lines.items()):
        points = " ".join(
            f"{LEFT + PLOT * minute / x_end:.1f},{base - HEIGHT * value / y_end:.1f}"
            for minute, value in _thinned(x, values)
        )
        yield f'<polyline class="c{number}" points="{points}"/>'
        y = base - HEIGHT + 8 + 17 * number
        yield _line(f"c{number}", LEFT + PLOT + 12, y, LEFT + PLOT + 30, y)
        yield _text(LEFT + PLOT + 36, y + 4, "name", label)


def _thinned(x: Sequence[float], values: Sequence[float]) -> Iterator[tuple[float, float]]:
    size = math.ceil(len(x) / POINTS_MAX)
    for at in range(0, len(x), size):
        yield statistics.mean(x[at : at + size]), statistics.median(values[at : at + size])


def _scale(most: float) -> tuple[float, float]:
    """Return a round step that gives three to seven steps, and the first multiple of it that is not
    below ``most``.
    """
    power = 10.0 ** math.floor(math.log10(most or 1.0))
    step = next(power * part for part in (0.2, 0.5, 1, 2) if (most or 1.0) / (power * part) <= 5)
    return step, step * math.ceil((most or 1.0) / step)


def _text(x: float, y: float, kind: str, text: str, anchor: str = "start") -> str:
    position = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {position}>{escape(text)}</text>'


def _line(kind: str, x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<line class="{kind}" x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"/>'
