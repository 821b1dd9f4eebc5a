"""The patterns that take an FP8 weight. Each says of a node why it does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import onnx_ir as ir

from ...plugins.spec import DOMAIN


@dataclass(frozen=True)
class Site:
    """A weight of a node that a rule knows. ``x`` is the place of the input that may be rounded, None for none.

    ``fault`` says why the weight cannot be FP8 there.
    """

    node: ir.Node
    weight: ir.Value
    x: int | None
    fault: str = ""


class Rule(Protocol):
    """Finds the weights of one kind of node."""

    def sites(self, node: ir.Node) -> list[Site]:
        """Those that ``node`` multiplies with; none if it is not of the rule's kind."""


class Linear:
    """``MatMul(x, Transpose(weight))``: the weight ``[out,in]`` as it is stored, x rounded."""

    def sites(self, node: ir.Node) -> list[Site]:
        """One, or none where the right side is computed."""
        if node.domain or node.op_type != "MatMul":
            return []
        turn = node.inputs[1].producer()
        if turn is None or turn.op_type != "Transpose" or not is_weight(turn.inputs[0]):
            return []
        weight = turn.inputs[0]
        fault = _other_uses(weight, lambda user: user.op_type == "Transpose" and _only_products(user))
        if list(turn.attributes["perm"].as_ints()) != [1, 0]:
            fault = "it is not turned like the weight of a linear"
        return [Site(node, weight, 0, fault)]


class Experts:
    """``SparseExperts``: both stacks of weights.

    What enters them stays wide. The input of the second product is inside the op, and a first product in FP8 would
    want one scale for all experts.
    """

    def sites(self, node: ir.Node) -> list[Site]:
        """Gate-and-up and down."""
        if node.domain != DOMAIN or node.op_type != "SparseExperts":
            return []
        return [
            Site(node, weight, None, _other_uses(weight, lambda user: user.op_type == "SparseExperts"))
            for weight in node.inputs[3:5]
            if weight is not None and is_weight(weight)
        ]


RULES: tuple[Rule, ...] = (Linear(), Experts())


def is_weight(value: ir.Value | None) -> bool:
    """Whether it is an initializer that a checkpoint gives its values."""
    return value is not None and value.is_initializer() and isinstance(value.const_value, ir.ExternalTensor)


def _only_products(node: ir.Node) -> bool:
    return all(user.op_type == "MatMul" and place == 1 for user, place in node.outputs[0].uses())


def _other_uses(weight: ir.Value, fits: Callable[[ir.Node], bool]) -> str:
    others = sorted({user.op_type for user, _ in weight.uses() if not fits(user)})
    return f"{', '.join(others)} reads it as well" if others else ""
