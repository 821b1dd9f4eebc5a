"""Frame and tables of reports in HTML: no scripts, no external resources, light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Literal

_STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1c1c1c; --faint: #5d5d5d; --line: #dcdcdc; --well: #f5f5f5; }
.c0 { --c: #3b6fb6; } .c1 { --c: #b4460f; } .c2 { --c: #2c7d4f; } .c3 { --c: #8a4fb0; }
.c4 { --c: #a0760a; } .c5 { --c: #c0396b; } .c6 { --c: #15808a; } .c7 { --c: #6b6b6b; }
@media (prefers-color-scheme: dark) {
  :root { --back: #16181b; --text: #e8e8e8; --faint: #a9adb3; --line: #3a3e44; --well: #202327; }
  .c0 { --c: #7fb0f2; } .c1 { --c: #f2935c; } .c2 { --c: #6cc794; } .c3 { --c: #c69be6; }
  .c4 { --c: #dcb54c; } .c5 { --c: #f083ab; } .c6 { --c: #5cc7d2; } .c7 { --c: #b5b5b5; }
}
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 62rem; padding: 1.2rem 1rem 3rem;
  color: var(--text); background: var(--back); }
h1 { font-size: 1.5rem; margin: .5rem 0; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .4rem; }
details { margin: .6rem 0; } h3 { font-size: 1rem; margin: 1.4rem 0 .3rem; } p { margin: .5rem 0; }
li { margin: .3rem 0; } .scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem .25rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top;
  overflow-wrap: anywhere; }
th { color: var(--faint); font-weight: 600; } td.number { text-align: right; }
.figures th, .figures td { text-align: right; white-space: nowrap; }
.figures th:first-child, .figures td:first-child { text-align: left; }
.facts td { text-align: left; } .facts td:first-child { color: var(--faint); white-space: nowrap; }
pre { background: var(--well); padding: .7rem; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
figure { margin: .6rem 0 1rem; } svg { width: 100%; max-width: 44rem; height: auto; display: block; }
svg text { font-size: 12px; fill: var(--faint); } .grid { stroke: var(--line); }
polyline { fill: none; stroke: var(--c); stroke-width: 2; } circle { fill: var(--c); }
.dashed polyline { stroke-dasharray: 7 4; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; font-size: .9rem; }
.legend span::before { content: ""; display: inline-block; width: .8rem; height: .8rem; margin-right: .35rem;
  border-radius: 2px; background: var(--c); vertical-align: -1px; }
.legend .dashed::before { background: repeating-linear-gradient(90deg, var(--c) 0 .2rem, transparent .2rem .3rem); }
@media (max-width: 36rem) {
  svg text { font-size: 19px; } .facts td:first-child { white-space: normal; min-width: 5.5rem; overflow-wrap: normal; }
}
.warn { border-left: 4px solid #c0392b; padding-left: .7rem; } .faint { color: var(--faint); }
"""


def html_page(title: str, parts: Iterable[str]) -> str:
    """Return a page of the parts, without the empty ones, below its title."""
    body = "\n".join(part for part in (f"<h1>{escape(title)}</h1>", *parts) if part)
    return (
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def html_table(head: Sequence[str], rows: Iterable[Sequence[Any]], kind: Literal["", "facts", "figures"] = "") -> str:
    """Return a table; ``facts`` are names and texts, ``figures`` are formatted numbers. It may have no head."""
    lines = ["<tr>" + "".join(f"<th>{escape(name)}</th>" for name in head) + "</tr>"] if head else []
    lines += ["<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows]
    return "\n".join([f'<div class="scroll"><table class="{kind}">', *lines, "</table></div>"])


def _cell(value: Any) -> str:
    if isinstance(value, int):
        return f'<td class="number">{value:,}</td>'
    return f"<td>{escape(str(value))}</td>"
