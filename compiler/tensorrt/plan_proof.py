"""Whether a plan keeps what its graph promised: TensorRT's own account of its products against the graph's record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...plugins.errors import BuildError
from ...plugins.problems import listed
from ..precision.product_table import BuiltProduct

_EXPERTS = "experts"
_LISTED = 8
_UNPROVEN = ("inspector",)  # its answers were never seen on hardware: what they deny is told, and fails nothing


def require_effect(name: str, record: Mapping[str, Any], built: Sequence[BuiltProduct]) -> list[str]:
    """Return what to tell of a plan that keeps what its graph promised.

    ``record`` is what ``QuantizedGraph`` said of the graph, ``built`` TensorRT's own account of the plan's products.

    Raises ``BuildError`` with the weights that are not as they should be, when less than the recipe's share is.
    """
    lost = losses(record, built)
    sure = {name: why for name, why in lost.items() if not any(b.weight == name and b.by in _UNPROVEN for b in built)}
    numbers = {promised["weight"]: promised["numbers"] for promised in record["matmuls"]}
    share = record["accepted_share"] - sum(numbers[weight] for weight in sure) / max(record["numbers"], 1)
    recipe = record["recipe"]["recipe"]
    if share < record["least_share"]:
        raise BuildError(
            f"{max(share, 0.0):.1%} of the weights that --precision {recipe} narrows are {recipe.upper()} in the "
            f"{name} plan, {record['least_share']:.0%} is the least that may be called so",
            why=_reasons(sure),
            fix="this version of TensorRT does not take them as they are; build in bf16 or fp16",
        )
    count = f"{len(lost)} weights that {recipe} narrows are" if len(lost) > 1 else f"1 weight that {recipe} narrows is"
    notes = [f"{count} not {recipe.upper()} in the {name} plan: {_reasons(lost)}"] if lost else []
    return notes + _unpacked(name, record, built)


def shortfall_of(name: str, record: Mapping[str, Any], built: Sequence[BuiltProduct]) -> str:
    """Return what is said first of a graph, or of its plan where there is one; empty where nothing has to be."""
    text: str = record.get("shortfall", "")
    lost = losses(record, built) if text and built else {}
    rows = [row for row in record["matmuls"] if row["weight"] in lost and row["computed"] == row["stored"]]
    share = record["share"] - sum(row["numbers"] for row in rows) / max(record["numbers"], 1)
    return f"{text}; {max(share, 0.0):.1%} in the {name} plan" if rows else text


def losses(record: Mapping[str, Any], built: Sequence[BuiltProduct]) -> dict[str, str]:
    """Return what of each quantized weight in the graph is lost in the plan. The worst of its products counts."""
    lost: dict[str, str] = {}
    for promised in record["matmuls"]:
        if not promised["narrow"]:
            continue
        products = [product for product in built if product.weight == promised["weight"]]
        reasons = [_loss(promised, product) for product in products]
        reasons = reasons or ["no layer of TensorRT's network multiplies with it"]
        if why := next(filter(None, reasons), ""):
            lost[promised["weight"]] = why
    return lost


def _loss(promised: Mapping[str, Any], built: BuiltProduct) -> str:
    if built.stored != promised["stored"]:
        return f"TensorRT stores it as {built.stored}"
    if promised["computed"] == promised["stored"] != built.computed:
        return f"TensorRT multiplies it in {built.computed}"
    if built.unpacked and promised["role"] != _EXPERTS:
        return f"TensorRT writes it to memory in {built.computed} before every product"
    return ""


def _unpacked(name: str, record: Mapping[str, Any], built: Sequence[BuiltProduct]) -> list[str]:
    """Tell of routed experts that are widened in memory; they take less room all the same."""
    rows = record["matmuls"]
    experts = {promised["weight"] for promised in rows if promised["narrow"] and promised["role"] == _EXPERTS}
    unpacked = [product for product in built if product.unpacked and product.weight in experts]
    if not unpacked:
        return []
    return [
        f"{len(unpacked)} weights of routed experts are stored in {record['recipe']['experts']}, and written to memory "
        f"in {unpacked[0].computed} before every product of the {name} plan: they take less room, and no less time"
    ]


def _reasons(why: Mapping[str, str]) -> str:
    """Join the first few weights, each with its reason."""
    return listed([f"{name}: {reason}" for name, reason in why.items()], _LISTED, "; ")
