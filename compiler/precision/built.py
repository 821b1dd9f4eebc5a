"""Whether a recipe also took effect in a plan: TensorRT's own account of its products, held against the graph's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...plugins.errors import BuildError
from ..tensorrt.matmuls import BuiltMatmul
from .proof import reasons

_EXPERTS = "experts"
_UNPROVEN = ("inspector",)  # its answers were never seen on hardware: what they deny is told, and fails nothing


def require_effect(name: str, record: Mapping[str, Any], built: Sequence[BuiltMatmul]) -> list[str]:
    """What to tell of a plan that keeps what its graph promised; ``record`` is what ``Narrowed`` said of the graph.

    Raises ``BuildError`` with the weights that are not as they should be, when less than the recipe's share is.
    """
    lost = losses(record, built)
    sure = {name: why for name, why in lost.items() if not any(b.weight == name and b.by in _UNPROVEN for b in built)}
    numbers = {each["weight"]: each["numbers"] for each in record["matmuls"]}
    share = record["share"] - sum(numbers[weight] for weight in sure) / max(record["numbers"], 1)
    recipe = record["recipe"]["recipe"]
    if share < record["least_share"]:
        raise BuildError(
            f"{max(share, 0.0):.1%} of the weights that --precision {recipe} narrows are {recipe.upper()} in the "
            f"{name} plan, {record['least_share']:.0%} is the least that may be called so",
            why=reasons(sure),
            fix="this version of TensorRT does not take them as they are; build in bf16 or fp16",
        )
    count = f"{len(lost)} weights that {recipe} narrows are" if len(lost) > 1 else f"1 weight that {recipe} narrows is"
    notes = [f"{count} not {recipe.upper()} in the {name} plan: {reasons(lost)}"] if lost else []
    return notes + _unpacked(name, record, built)


def losses(record: Mapping[str, Any], built: Sequence[BuiltMatmul]) -> dict[str, str]:
    """By weight: what of a narrow one in the graph is lost in the plan. The worst of its products counts."""
    lost: dict[str, str] = {}
    for each in record["matmuls"]:
        if not each["narrow"]:
            continue
        found = [one for one in built if one.weight == each["weight"]]
        every = [_loss(each, one) for one in found] or ["no layer of TensorRT's network multiplies with it"]
        if why := next(filter(None, every), ""):
            lost[each["weight"]] = why
    return lost


def _loss(promised: Mapping[str, Any], built: BuiltMatmul) -> str:
    if built.stored != promised["stored"]:
        return f"TensorRT stores it as {built.stored}"
    if promised["computed"] == promised["stored"] != built.computed:
        return f"TensorRT multiplies it in {built.computed}"
    if built.unpacked and promised["role"] != _EXPERTS:
        return f"TensorRT writes it to memory in {built.computed} before every product"
    return ""


def _unpacked(name: str, record: Mapping[str, Any], built: Sequence[BuiltMatmul]) -> list[str]:
    """Experts take less room all the same."""
    experts = {each["weight"] for each in record["matmuls"] if each["narrow"] and each["role"] == _EXPERTS}
    found = [each for each in built if each.unpacked and each.weight in experts]
    if not found:
        return []
    return [
        f"{len(found)} weights of routed experts are stored in {record['recipe']['experts']}, and written to memory in "
        f"{found[0].computed} before every product of the {name} plan: they take less room, and no less time"
    ]
