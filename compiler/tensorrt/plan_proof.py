"""Verify that a plan keeps the number types of its graph: compare TensorRT's matmuls with the graph's record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...plugins.errors import BuildError
from ...plugins.problems import listed
from ..precision.product_table import BuiltProduct

_EXPERTS = "experts"
_LISTED = 8
_UNPROVEN = ("inspector",)  # never tested on hardware: its findings are reported, but do not fail a build


def require_effect(name: str, record: Mapping[str, Any], built: Sequence[BuiltProduct]) -> list[str]:
    """Return notes on a plan that keeps its graph's number types.

    ``record`` comes from ``QuantizedGraph``; ``built`` are the plan's matmuls according to TensorRT. Raises
    ``BuildError`` listing the deviating weights if the recipe's share is not reached.
    """
    losses_by_name = losses(record, built)
    sure = {
        name: why
        for name, why in losses_by_name.items()
        if not any(b.weight == name and b.by in _UNPROVEN for b in built)
    }
    numbers = {promised["weight"]: promised["numbers"] for promised in record["matmuls"]}
    share = record["accepted_share"] - sum(numbers[weight] for weight in sure) / max(record["numbers"], 1)
    recipe = record["recipe"]["recipe"]
    if share < record["least_share"]:
        raise BuildError(
            f"only {max(share, 0.0):.1%} of the weights that --precision {recipe} quantizes are {recipe.upper()} in "
            f"the {name} plan; at least {record['least_share']:.0%} is required",
            why=_reasons(sure),
            fix="build in bf16 or fp16: this version of TensorRT changes the type of these weights",
        )
    count = (
        f"{len(losses_by_name)} weights that {recipe} quantizes are"
        if len(losses_by_name) > 1
        else f"1 weight that {recipe} quantizes is"
    )
    notes = [f"{count} not {recipe.upper()} in the {name} plan: {_reasons(losses_by_name)}"] if losses_by_name else []
    return notes + _unpacked(name, record, built)


def shortfall_of(name: str, record: Mapping[str, Any], built: Sequence[BuiltProduct]) -> str:
    """Return the first note on a graph, or on its plan if there is one; empty if none is needed."""
    text: str = record.get("shortfall", "")
    losses_by_name = losses(record, built) if text and built else {}
    rows = [row for row in record["matmuls"] if row["weight"] in losses_by_name and row["computed"] == row["stored"]]
    share = record["share"] - sum(row["numbers"] for row in rows) / max(record["numbers"], 1)
    return f"{text}; {max(share, 0.0):.1%} in the {name} plan" if rows else text


def losses(record: Mapping[str, Any], built: Sequence[BuiltProduct]) -> dict[str, str]:
    """Return the deviation of each weight that is quantized in the graph, from the worst of its matmuls in the plan."""
    losses_by_name: dict[str, str] = {}
    for promised in record["matmuls"]:
        if not promised["narrow"]:
            continue
        products = [product for product in built if product.weight == promised["weight"]]
        reasons = [_loss(promised, product) for product in products]
        reasons = reasons or ["no layer of TensorRT's network uses the weight"]
        if why := next(filter(None, reasons), ""):
            losses_by_name[promised["weight"]] = why
    return losses_by_name


def _loss(promised: Mapping[str, Any], built: BuiltProduct) -> str:
    if built.stored != promised["stored"]:
        return f"TensorRT stores the weight as {built.stored}"
    if promised["computed"] == promised["stored"] != built.computed:
        return f"TensorRT computes in {built.computed}"
    if built.unpacked and promised["role"] != _EXPERTS:
        return f"TensorRT dequantizes the weight to memory in {built.computed} before every matmul"
    return ""


def _unpacked(name: str, record: Mapping[str, Any], built: Sequence[BuiltProduct]) -> list[str]:
    """Return a note on routed experts that are dequantized to memory; they still save memory."""
    rows = record["matmuls"]
    experts = {promised["weight"] for promised in rows if promised["narrow"] and promised["role"] == _EXPERTS}
    unpacked = [product for product in built if product.unpacked and product.weight in experts]
    if not unpacked:
        return []
    return [
        f"{len(unpacked)} weights of routed experts are stored in {record['recipe']['experts']}, but dequantized to "
        f"memory in {unpacked[0].computed} before every matmul of the {name} plan: this saves memory, but no time"
    ]


def _reasons(why: Mapping[str, str]) -> str:
    """Join the first few weights with their reasons."""
    return listed([f"{name}: {reason}" for name, reason in why.items()], _LISTED, "; ")
