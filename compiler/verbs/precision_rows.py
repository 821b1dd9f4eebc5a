"""Rows on precision, shared by the summaries of build, export and inspect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..precision.product_table import described
from ..precision.recipes import STORED, in_words, patterns


def first_rows(multiplied: str) -> list[tuple[str, str]]:
    """Return the first row of a summary if fewer matmuls run in the recipe's type than are stored in it."""
    return [("multiplied", multiplied)] if multiplied else []


def stored_rows(table: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the row on the storage type of a GGUF checkpoint, if it is one."""
    return [("weights from", table[STORED])] if STORED in table else []


def precision_rows(table: Mapping[str, str], report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return rows on a recipe's recorded table, and on the matmuls and rounding errors of a report."""
    rows = [*stored_rows(table), ("precision", in_words(table))]
    if excluded := patterns(table):
        rows.append(("excluded", ", ".join(excluded)))
    rows += [(f"{name} matmuls", described(each)) for name, each in report.get("matmuls", {}).items()]
    if changed := _rounding(report.get("precision", {})):
        rows.append(("rounding", changed))
    return rows


def _rounding(records: Mapping[str, Any]) -> str:
    """Name the tensor of each graph with the largest rounding error."""
    largest = {name: max(each["losses"].items(), key=_loss) for name, each in records.items() if each["losses"]}
    texts = [f"{name} weights by at most {loss:.2%} ({tensor})" for name, (tensor, loss) in largest.items()]
    return f"changed {', '.join(texts)}" if texts else ""


def _loss(item: tuple[str, float]) -> float:
    return item[1]
