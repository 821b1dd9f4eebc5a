"""Routed experts over packed stacks: this project's op, since no pair of Q and DQ expresses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from ...plugins.op_spec import DOMAIN
from ...plugins.ops.quantized_linear.packed_weights import code_shape, scale_dtype, scale_shape
from ...plugins.ops.sparse_experts.spec import GATE
from .qdq_nodes import onnx_type, streamed
from .quantized_weight import QuantizedWeight, WeightStream

STACKS = {"gate_up": 3, "down": 4}  # indices of the inputs of SparseExperts
_BIASES = (5, 6)
UNPAIRED = "this project's kernel requires that both stacks of the experts are packed and that no other node reads them"


def pack_experts(graph: ir.Graph, node: ir.Node, weights: Mapping[str, QuantizedWeight]) -> dict[str, WeightStream]:
    """Replace a ``SparseExperts`` by a ``QuantizedExperts`` over packed stacks; returns the initializers to fill."""
    streams: dict[str, WeightStream] = {}
    packed: list[ir.Value] = []
    attributes: dict[str, int | float | str] = {}
    for stack, index in STACKS.items():
        value = node.inputs[index]
        if value is None:
            raise ValueError(f"{node.name} has no {stack}")
        name, shape = str(value.name), tuple(int(dim) for dim in value.const_value.shape)
        format_name = weights[name].packed
        del graph.initializers[name]
        experts, *of_one = shape
        codes = streamed(graph, name, (experts, *code_shape(format_name, *of_one)), ir.DataType.UINT8)
        kind = onnx_type(scale_dtype(format_name))
        scales = streamed(graph, f"{name}_scale", (experts, *scale_shape(format_name, *of_one)), kind)
        streams |= {name: WeightStream(name, scales=False), f"{name}_scale": WeightStream(name, scales=True)}
        packed += [codes, scales]
        attributes[f"{stack}_format"] = format_name
        attributes["hidden" if stack == "down" else "inner"] = shape[1] if stack == "down" else shape[1] // 2
    replace_experts(graph, node, "QuantizedExperts", packed, attributes | expert_terms(node))
    return streams


def expert_terms(node: ir.Node) -> dict[str, float]:
    """Return the attributes of the gate of a ``SparseExperts``, with their defaults: functions have none."""
    return {each.name: node.attributes.get_float(each.name, each.default) for each in GATE}


def replace_experts(
    graph: ir.Graph, node: ir.Node, op: str, stacks: Sequence[ir.Value], attributes: Mapping[str, Any]
) -> None:
    """Replace a ``SparseExperts`` by another op of this project over packed stacks."""
    biases = [node.inputs[index] for index in _BIASES if index < len(node.inputs)]
    replacement = ir.node(op, [*node.inputs[:3], *stacks, *biases], attributes, domain=DOMAIN)
    (old,), (new,) = node.outputs, replacement.outputs
    new.shape, new.type = old.shape, old.type
    ir.convenience.replace_nodes_and_values(graph, node, [node], [replacement], [old], [new])


def is_experts(node: ir.Node) -> bool:
    """Return True for the semantic node of routed experts."""
    return bool(node.domain == DOMAIN and node.op_type == "SparseExperts")


def packable(node: ir.Node, weights: Mapping[str, QuantizedWeight]) -> bool:
    """Return True if both stacks of a ``SparseExperts`` are to be packed, and nothing else reads them."""
    stacks = [node.inputs[index] for index in STACKS.values()]
    return all(
        value is not None and _is_packed(str(value.name), weights) and len(value.uses()) == 1 for value in stacks
    )


def _is_packed(name: str, weights: Mapping[str, QuantizedWeight]) -> bool:
    return name in weights and weights[name].packed != ""
