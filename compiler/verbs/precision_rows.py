"""What a summary says of precision, the same for a build and an export."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..precision.products import described
from ..precision.recipes import patterns

_NOT_TYPES = ("recipe", "exclude", "calibration")  # of a recorded table


def precision_rows(table: Mapping[str, str], report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """From the recorded table of a recipe, and of a report the products and what rounding changed."""
    rows = [("precision", _types(table))]
    if excluded := patterns(table):
        rows.append(("excluded", ", ".join(excluded)))
    rows += [(f"{name} matmuls", described(each)) for name, each in report.get("matmuls", {}).items()]
    if changed := _rounding(report.get("precision", {})):
        rows.append(("rounding", changed))
    return rows


def _types(table: Mapping[str, str]) -> str:
    """One word where all is of one type, else what is of which."""
    by_type: dict[str, list[str]] = {}
    for name, kind in table.items():
        if name not in _NOT_TYPES:
            by_type.setdefault(kind, []).append(name.replace("_", " "))
    if len(by_type) == 1:
        return table["recipe"]
    return f"{table['recipe']}: " + "; ".join(f"{', '.join(names)} in {kind}" for kind, names in by_type.items())


def _rounding(narrowed: Mapping[str, Any]) -> str:
    """The tensor of each graph that rounding moved most."""
    most = {name: max(each["losses"].items(), key=_loss) for name, each in narrowed.items() if each["losses"]}
    said = [f"{name} weights by {loss:.2%} at most ({tensor})" for name, (tensor, loss) in most.items()]
    return f"changed {', '.join(said)}" if said else ""


def _loss(item: tuple[str, float]) -> float:
    return item[1]
