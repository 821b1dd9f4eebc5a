"""Chart of decoding speed by number of drafts, as inline SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_WIDTH, _HEIGHT = 720, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 28, 36


def rate_picture(rates: Sequence[Mapping[str, Any]], chosen: int) -> str:
    """Return a chart of the medians, with the slowest and the fastest turn of each K, and ``chosen`` marked.

    ``rates`` have ``k``, ``tokens_per_second``, ``slowest`` and ``fastest``.
    """
    ordered = sorted(rates, key=lambda rate: rate["k"])
    first, last = int(ordered[0]["k"]), int(ordered[-1]["k"])
    most = max(float(rate["fastest"]) for rate in ordered) or 1.0

    def x(k: int) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (k - first) / max(last - first, 1)

    def y(rate: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * rate / most

    base = y(0)
    summary = ", ".join(f"{rate['k']}: {rate['tokens_per_second']:.1f}" for rate in ordered)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" width="100%" font-size="12" fill="#555">',
        f"<title>{escape(f'Tokens per second by drafts per round: {summary}')}</title>",
        f'<path d="M{_LEFT} {_TOP}V{base:.1f}H{_WIDTH - _RIGHT}" fill="none" stroke="#bbb"/>',
        f'<text x="{_LEFT}" y="{_TOP - 10}" text-anchor="middle">tokens per second</text>',
        f'<text x="{(_LEFT + _WIDTH) / 2}" y="{_HEIGHT - 4}" text-anchor="middle">drafts per round</text>',
    ]
    parts += [
        f'<text x="{_LEFT - 8}" y="{y(share * most) + 4:.1f}" text-anchor="end">{share * most:.0f}</text>'
        for share in (0.0, 0.5, 1.0)
    ]
    line = " ".join(f"{x(rate['k']):.1f},{y(rate['tokens_per_second']):.1f}" for rate in ordered)
    parts.append(f'<polyline points="{line}" fill="none" stroke="#3b6fb6" stroke-width="2"/>')
    for rate in ordered:
        at, is_chosen = x(rate["k"]), rate["k"] == chosen
        bold = ' font-weight="bold"' if is_chosen else ""
        parts += [
            f'<path d="M{at:.1f} {y(rate["slowest"]):.1f}V{y(rate["fastest"]):.1f}" stroke="#3b6fb6" opacity="0.5"/>',
            f'<circle cx="{at:.1f}" cy="{y(rate["tokens_per_second"]):.1f}" r="{6 if is_chosen else 3}" '
            f'fill="{"#c2410c" if is_chosen else "#3b6fb6"}"/>',
            f'<text x="{at:.1f}" y="{base + 16:.1f}" text-anchor="middle"{bold}>{rate["k"]}</text>',
        ]
    return "\n".join([*parts, "</svg>"])
