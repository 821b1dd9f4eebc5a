"""The build report as one page to look at: no scripts, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from .console import size
from .matmul_table import described

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1c1c1c; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; } caption { text-align: left; color: #555; padding: .4rem 0; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #ddd; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; } details { margin: .6rem 0; }
li { margin: .3rem 0; } code { font-size: .9em; overflow-wrap: anywhere; }
"""
_UNNAMED = "other"


def report_html(report: Mapping[str, Any], precision: Mapping[str, str], title: str) -> str:
    """The page for what ``build_report.json`` holds; ``precision`` is the manifest's table."""
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>peagle-compile {escape(str(report['product_version']))}, "
        f"{escape(str(report['num_speculative_tokens']))} drafts per round</p>",
        *_warnings(report["warnings"]),
        "<h2>Precision</h2>",
        _table(("of", "type"), [(name.replace("_", " "), kind) for name, kind in precision.items()]),
        *_matmuls(report.get("matmuls") or {}),
        *_losses(report.get("precision") or {}),
        "<h2>Time and memory</h2>",
        _table(("phase", "seconds", "most memory so far", ""), [_phase(each) for each in report["phases"]]),
        *_plans(report.get("plans") or {}),
        "<h2>Sizes</h2>",
        _table(("part", "bytes", ""), [(name, count, size(count)) for name, count in report["bytes"].items()]),
    ]
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _warnings(warnings: Sequence[str]) -> list[str]:
    if not warnings:
        return []
    return ["<h2>Warnings</h2>", "<ul>", *(f"<li>{escape(str(each))}</li>" for each in warnings), "</ul>"]


def _matmuls(tables: Mapping[str, Any]) -> Iterable[str]:
    """A line for each graph, and its products by what they are for."""
    for half, table in tables.items():
        yield f"<h2>Products of the {escape(half)}</h2>"
        yield f"<p>{escape(described(table))}</p>"
        roles: dict[str, list[Mapping[str, Any]]] = {}
        for row in table["list"]:
            roles.setdefault(row.get("role") or _UNNAMED, []).append(row)
        for role, rows in roles.items():
            yield f"<details><summary>{escape(role)}: {len(rows)}</summary>"
            yield _table(("weight", "stored", "multiplied in", "weights", "says", ""), [_row(row) for row in rows])
            yield "</details>"


def _row(row: Mapping[str, Any]) -> tuple[Any, ...]:
    note = "unpacked to memory before every product" if row["unpacked"] else row.get("why", "")
    return row["weight"], row["stored"], row["computed"], row["numbers"], row["by"], note


def _losses(precision: Mapping[str, Any]) -> Iterable[str]:
    for half, record in precision.items():
        if losses := record.get("losses"):
            yield f"<h2>What rounding changed in the {escape(half)}</h2>"
            yield f"<details open><summary>{len(losses)} tensors, relative, the largest first</summary>"
            worst = sorted(losses.items(), key=lambda item: -item[1])
            yield _table(("tensor", "error"), [(name, f"{loss:.3%}") for name, loss in worst])
            yield "</details>"


def _phase(phase: Mapping[str, Any]) -> tuple[Any, ...]:
    kept = "taken from an earlier build" if phase.get("reused") else ""
    return phase["phase"], f"{phase['seconds']:.1f}", size(phase["peak_rss_bytes"]), kept


def _plans(plans: Mapping[str, Any]) -> list[str]:
    rows = [(name, f"{each['seconds']:.1f}", size(each["peak_rss_bytes"])) for name, each in plans.items()]
    return [_table(("plan", "seconds", "most memory of its own process"), rows)] if rows else []


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = ["<table>", "<tr>" + "".join(f"<th>{escape(each)}</th>" for each in head) + "</tr>"]
    lines += ["<tr>" + "".join(_cell(each) for each in row) + "</tr>" for row in rows]
    return "\n".join([*lines, "</table>"])


def _cell(value: Any) -> str:
    if isinstance(value, int):
        return f'<td class="number">{value:,}</td>'
    return f"<td>{escape(str(value))}</td>"
