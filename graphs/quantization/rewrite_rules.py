"""Rewrite rules: patterns in which a weight can be quantized, with reasons where it cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import onnx_ir as ir

from ...plugins.op_spec import DOMAIN
from .quantized_weight import Rounding


@dataclass(frozen=True)
class Site:
    """A weight of a ``node`` that a rule matches. ``x`` is the index of the input to quantize, None for none.

    ``reader`` is the node with the weight as its direct input. ``fault`` is the reason why the weight cannot be
    quantized there. If the matmul is ``inside`` the node, the node itself quantizes the input. With ``gathers``, the
    node looks up rows and multiplies nothing.
    """

    node: ir.Node
    weight: ir.Value
    x: int | None
    reader: ir.Node
    fault: str = ""
    inside: bool = False
    gathers: bool = False

    def round_inside(self, rounding: Rounding) -> None:
        """Make the node quantize the input that it multiplies with the weight."""
        self.node.attributes["inner_codes"] = ir.AttrString("inner_codes", rounding.codes)
        self.node.attributes["inner_scale"] = ir.AttrFloat32("inner_scale", rounding.scale or 0.0)


class Rule(Protocol):
    """Finds the weights of one kind of node."""

    def sites(self, node: ir.Node) -> list[Site]:
        """Return the weights of ``node``; none if it is not of the rule's kind."""


class LinearRule:
    """The rule for ``MatMul(x, Transpose(weight))``: the weight ``[out,in]`` as stored, x quantized."""

    def sites(self, node: ir.Node) -> list[Site]:
        """Return the weight of a linear, or nothing if the right side is computed."""
        if node.domain or node.op_type != "MatMul":
            return []
        turn = node.inputs[1].producer()
        if turn is None or turn.op_type != "Transpose" or not is_weight(turn.inputs[0]):
            return []
        fault = "" if _only_products(turn) else "another node also reads its transpose"
        if list(turn.attributes["perm"].as_ints()) != [1, 0]:
            fault = "the weight is not transposed like the weight of a linear layer"
        return [Site(node, turn.inputs[0], 0, turn, fault)]


class ExpertsRule:
    """The rule for ``SparseExperts``: two stacks of weights; x is quantized before the node, ``down``'s input in it."""

    def sites(self, node: ir.Node) -> list[Site]:
        """Return the two stacks of weights: gate-and-up, and down."""
        if node.domain != DOMAIN or node.op_type != "SparseExperts":
            return []
        gate_up, down = node.inputs[3], node.inputs[4]
        sites = [Site(node, gate_up, 0, node)] if gate_up is not None and is_weight(gate_up) else []
        return sites + ([Site(node, down, None, node, inside=True)] if down is not None and is_weight(down) else [])


class EmbeddingRule:
    """The rule for ``Gather(weight, ids)``: a lookup of rows."""

    def sites(self, node: ir.Node) -> list[Site]:
        """Return the matrix, or nothing if it is computed or if columns are gathered."""
        if node.domain or node.op_type != "Gather" or not is_weight(node.inputs[0]):
            return []
        weight = node.inputs[0]
        return [Site(node, weight, None, node, gathers=True)] if node.attributes.get_int("axis", 0) == 0 else []


RULES: tuple[Rule, ...] = (LinearRule(), ExpertsRule(), EmbeddingRule())


def inner_codes(node: ir.Node) -> str:
    """Return the code type for the input of a ``SparseExperts``' second matmul; empty if it is not quantized."""
    return node.attributes["inner_codes"].as_string() if "inner_codes" in node.attributes else ""


def is_weight(value: ir.Value | None) -> bool:
    """Return True for an initializer with values from a checkpoint."""
    return value is not None and value.is_initializer() and isinstance(value.const_value, ir.ExternalTensor)


def _only_products(node: ir.Node) -> bool:
    return all(user.op_type == "MatMul" and index == 1 for user, index in node.outputs[0].uses())
