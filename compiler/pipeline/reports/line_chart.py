"""Line charts as inline SVG, in the colours of the page that contains them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float]]
_WIDTH, _HEIGHT = 640, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 14, 36, 40
COLOURS = 8  # classes c0 .. c7 of the page
_TICKS = 5


def line_chart(
    series: Mapping[str, Points], x_title: str, y_title: str, *, marks: bool = True, names: Sequence[str] = ()
) -> str:
    """Return a chart of lines with a legend, or nothing without points.

    ``marks`` draws every point. The horizontal axis begins at the smallest x, the vertical one at 0. ``names`` are
    those of all lines on a page: a line then has the same colour in every chart.
    """
    places = {name: at for at, name in enumerate(names or series)}
    lines = {name: [point for point in points if all(map(math.isfinite, point))] for name, points in series.items()}
    every = [point for points in lines.values() for point in points]
    if not every:
        return ""
    first, last = min(x for x, _ in every), max(x for x, _ in every)
    largest = max(y for _, y in every) or 1.0
    step = tick_step(largest)
    top = math.ceil(largest / step) * step

    def across(x: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * ((x - first) / (last - first) if last > first else 0.5)

    def up(y: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * y / top

    summary = f"{y_title} by {x_title}: {'; '.join(lines)}"
    parts = [
        '<figure><div class="legend">',
        *(f'<span class="{_class(places[name])}">{escape(name)}</span>' for name in lines),
        f'</div><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(summary)}">',
        f'<text x="4" y="14">{escape(y_title)}</text>',
        f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 6}" text-anchor="end">{escape(x_title)}</text>',
    ]
    for number in range(round(top / step) + 1):
        y = up(number * step)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number * step:g}</text>')
    below = _HEIGHT - _BOTTOM + 16
    parts += [
        f'<text x="{across(x):.1f}" y="{below}" text-anchor="middle">{x:g}</text>'
        for x in _marks([x for x, _ in every])
    ]
    for name, points in lines.items():
        path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in sorted(points))
        parts.append(f'<g class="{_class(places[name])}"><polyline points="{path}"/>')
        if marks:
            parts += [f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3.5"/>' for x, y in points]
        parts.append("</g>")
    return "\n".join([*parts, "</svg></figure>"])


def _class(at: int) -> str:
    """Return the class of a line: its colour, and whether it is dashed because the colour has a line already."""
    return f"c{at % COLOURS}{' dashed' * (at // COLOURS % 2)}"


def tick_step(largest: float) -> float:
    """Return a round distance (1, 2 or 5 times a power of ten) that divides ``largest`` into at most five parts."""
    rough = largest / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough * (1 - 1e-9))


def _marks(values: Sequence[float]) -> list[float]:
    """Return the values to write below the axis: all of a few whole numbers, else round ones in their range."""
    distinct = sorted({*values})
    if len(distinct) == 1 or (len(distinct) <= 2 * _TICKS and all(value == int(value) for value in distinct)):
        return distinct
    first, last = distinct[0], distinct[-1]
    step = tick_step(last - first)
    return [number * step for number in range(math.ceil(first / step), math.floor(last / step) + 1)]
