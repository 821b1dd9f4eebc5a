"""The rules of that rewrite: patterns that take a quantized weight. Each says of a node why it does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import onnx_ir as ir

from ...plugins.op_spec import DOMAIN
from .quantized_weight import Rounding


@dataclass(frozen=True)
class Site:
    """A weight of a ``node`` that a rule knows. ``x`` is the place of the input that may be rounded, None for none.

    ``reader`` is the node that has the weight itself for an input. ``fault`` says why it cannot be quantized there.
    Where the product is ``inside`` of the node, the node is told how to round what enters it. One that ``gathers``
    looks rows up and multiplies nothing.
    """

    node: ir.Node
    weight: ir.Value
    x: int | None
    reader: ir.Node
    fault: str = ""
    inside: bool = False
    gathers: bool = False

    def round_inside(self, rounding: Rounding) -> None:
        """Have the node round what it multiplies with the weight."""
        self.node.attributes["inner_codes"] = ir.AttrString("inner_codes", rounding.codes)
        self.node.attributes["inner_scale"] = ir.AttrFloat32("inner_scale", rounding.scale or 0.0)


class Rule(Protocol):
    """Finds the weights of one kind of node."""

    def sites(self, node: ir.Node) -> list[Site]:
        """The weights that ``node`` multiplies with; none if it is not of the rule's kind."""


class LinearRule:
    """The rule of ``MatMul(x, Transpose(weight))``: the weight ``[out,in]`` as it is stored, x rounded."""

    def sites(self, node: ir.Node) -> list[Site]:
        """The one weight of a linear, or none where the right side is computed."""
        if node.domain or node.op_type != "MatMul":
            return []
        turn = node.inputs[1].producer()
        if turn is None or turn.op_type != "Transpose" or not is_weight(turn.inputs[0]):
            return []
        fault = "" if _only_products(turn) else "something else reads it turned as well"
        if list(turn.attributes["perm"].as_ints()) != [1, 0]:
            fault = "it is not turned like the weight of a linear"
        return [Site(node, turn.inputs[0], 0, turn, fault)]


class ExpertsRule:
    """The rule of ``SparseExperts``: two stacks of weights; x is rounded before the node, ``down``'s input in it."""

    def sites(self, node: ir.Node) -> list[Site]:
        """The two stacks of weights: gate-and-up, and down."""
        if node.domain != DOMAIN or node.op_type != "SparseExperts":
            return []
        gate_up, down = node.inputs[3], node.inputs[4]
        sites = [Site(node, gate_up, 0, node)] if gate_up is not None and is_weight(gate_up) else []
        return sites + ([Site(node, down, None, node, inside=True)] if down is not None and is_weight(down) else [])


class EmbeddingRule:
    """The rule of ``Gather(weight, ids)``: rows of a matrix by their number."""

    def sites(self, node: ir.Node) -> list[Site]:
        """The matrix, or none where that is computed or its columns are taken."""
        if node.domain or node.op_type != "Gather" or not is_weight(node.inputs[0]):
            return []
        weight = node.inputs[0]
        return [Site(node, weight, None, node, gathers=True)] if node.attributes.get_int("axis", 0) == 0 else []


RULES: tuple[Rule, ...] = (LinearRule(), ExpertsRule(), EmbeddingRule())


def inner_codes(node: ir.Node) -> str:
    """The codes that a ``SparseExperts`` rounds the input of its second product to; empty for nothing."""
    return node.attributes["inner_codes"].as_string() if "inner_codes" in node.attributes else ""


def is_weight(value: ir.Value | None) -> bool:
    """Whether a value is an initializer that a checkpoint gives its numbers."""
    return value is not None and value.is_initializer() and isinstance(value.const_value, ir.ExternalTensor)


def _only_products(node: ir.Node) -> bool:
    return all(user.op_type == "MatMul" and place == 1 for user, place in node.outputs[0].uses())
