"""Linears of one input as a single matmul with stacked weights: q, k and v of attention, gate and up of an MLP.

TensorRT joins matmuls with unquantized weights by itself, but not matmuls with scales. Codes and scales are stacked as
stored, so nothing is rounded again; a single scale of a weight is repeated for each row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from ...node_tape import Nodes
from ...quantization.rewrite_rules import is_weight
from ..shared_passes import stacked_parts
from .joined_heads import are_joined

_BY_ROW = ("Transpose", "DequantizeLinear", "Cast", "Sub", "Pow")  # between the stored rows and a matmul


def apply(model: ir.Model) -> None:
    """Join the linears of each input in place, if their weights have the same width, type and kind of scales.

    Unquantized ones are joined only where ``joined_heads`` continues: TensorRT writes the outputs of linears that it
    joins to separate tensors, but copies the parts of a joined output that different kernels read.
    """
    groups: dict[object, list[ir.Node]] = defaultdict(list)
    for node in model.graph:
        turn = node.inputs[1].producer() if node.op_type == "MatMul" and node.inputs[1] is not None else None
        if turn is None or turn.op_type != "Transpose" or list(turn.attributes["perm"].as_ints()) != [1, 0]:
            continue
        if (signature := _form(turn.outputs[0])) is not None:
            groups[node.inputs[0], signature].append(node)
    for nodes in groups.values():
        if len(nodes) > 1 and (_has_scale(nodes[0]) or are_joined([node.outputs[0] for node in nodes])):
            _join(model.graph, nodes)


def _form(value: ir.Value | None) -> object:
    """Describe how a weight is computed from stored rows; equal for weights that can be stacked, None for others."""
    if value is None:
        return None
    if is_weight(value):
        shape: Any = value.shape
        return ("stored", value.dtype, len(shape), *shape[1:]) if len(value.uses()) == 1 else None
    constant = ir.convenience.get_const_tensor(value)
    if constant is not None:
        return "constant", constant.dtype, tuple(constant.shape), constant.tobytes()
    node = value.producer()
    if node is None or node.domain or node.op_type not in _BY_ROW or len(value.uses()) != 1:
        return None
    forms = [_form(each) for each in node.inputs]
    attributes = tuple(sorted((name, str(each.value)) for name, each in node.attributes.items()))
    return None if None in forms else (node.op_type, attributes, *forms)


def _has_scale(product: ir.Node) -> bool:
    transposed: Any = product.inputs[1]
    return not is_weight(transposed.producer().inputs[0])


def _join(graph: ir.Graph, nodes: Sequence[ir.Node]) -> None:
    op = Nodes()
    outputs: list[Any] = [node.outputs[0] for node in nodes]
    rows = [int(output.shape[-1]) for output in outputs]
    product = op.MatMul(nodes[0].inputs[0], _stack(graph, op, [node.inputs[1] for node in nodes], rows))
    parts = op.op_multi_out("Split", [product, op.constant(rows)], {"axis": -1}, num_outputs=len(rows))
    product.shape, product.type = ir.Shape([*outputs[0].shape[:-1], sum(rows)]), outputs[0].type
    for part, output in zip(parts, outputs, strict=True):
        part.shape, part.type = output.shape, output.type
    ir.convenience.replace_nodes_and_values(graph, nodes[0], nodes, op.nodes, outputs, parts)


def _stack(graph: ir.Graph, op: Nodes, values: Sequence[Any], rows: Sequence[int]) -> Any:
    """Return a value that stacks ``values`` of one form, which have so many ``rows`` each."""
    first = values[0]
    if is_weight(first):
        return stacked_parts(graph, values) if first.shape else _repeat(op, values, rows)
    if ir.convenience.get_const_tensor(first) is not None:
        return first
    node = first.producer()
    columns = zip(*(value.producer().inputs for value in values), strict=True)
    inputs = [_stack(graph, op, column, rows) for column in columns]
    attributes = dict(node.attributes)
    if node.op_type == "DequantizeLinear" and not node.inputs[1].shape:
        attributes["axis"] = ir.AttrInt64("axis", 0)
    stacked = op.op(node.op_type, inputs, attributes)
    stacked.type = first.type
    if first.shape is not None:
        dims = [*first.shape[:-1], sum(rows)] if node.op_type == "Transpose" else [sum(rows), *first.shape[1:]]
        stacked.shape = ir.Shape(dims)
    return stacked


def _repeat(op: Nodes, scales: Sequence[ir.Value], rows: Sequence[int]) -> ir.Value:
    """Return a scale for each row, from one for each weight; TensorRT folds it."""
    spread = [op.Expand(scale, op.constant([count])) for scale, count in zip(scales, rows, strict=True)]
    result = op.Concat(*spread, axis=0)
    result.shape, result.type = ir.Shape([sum(rows)]), scales[0].type
    return result
