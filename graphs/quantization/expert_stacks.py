"""Stacks of routed experts in the layout of TensorRT's own layer: gate, up and down separate, every matrix transposed.

That layer computes in FP8 if a constant of codes is dequantized directly before it, so no node may split or transpose
the codes. The semantic graph changes in the same way, since both read one file; there, nodes reassemble the stacks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import onnx_ir as ir

from ...plugins.op_spec import DOMAIN
from ..node_tape import Nodes
from ..weight_cuts import Cut
from .qdq_nodes import streamed
from .rewrite_rules import inner_codes, is_weight

_TURN = [0, 2, 1]
_GATE_UP, _DOWN = 3, 4  # indices of the inputs of SparseExperts
_HALVES = ("gate", "up")
_CODES = ir.DataType.FLOAT8E4M3FN


class _Stack(NamedTuple):
    """A stored stack ``[E, rows, columns]``; codes also have ``scales`` and ``dequantize``."""

    weight: ir.Value
    scales: ir.Value | None
    dequantize: ir.Node | None

    @property
    def shape(self) -> tuple[int, ...]:
        return _shape(self.weight)


def split_experts(model: ir.Model) -> dict[str, Cut]:
    """Rewrite the stacks of every suitable ``SparseExperts`` in place; returns their cuts.

    Suitable are wide stacks, and E4M3 codes with one scale per matrix, or per half for gate and up. Stacks in another
    form, or with other readers, stay unchanged.
    """
    cuts: dict[str, Cut] = {}
    for node in tuple(model.graph):
        if node.domain == DOMAIN and node.op_type == "SparseExperts":
            gate_up, down = (_stored(node.inputs[index]) for index in (_GATE_UP, _DOWN))
            if gate_up and down and _fits(node, gate_up, down):
                cuts |= _split(model.graph, node, gate_up, down)
    return cuts


def halves_of(gate_up: ir.Value | None) -> tuple[ir.Value, ir.Value] | None:
    """Return gate and up, transposed, of a stack that ``split_experts`` split; None for any other."""
    reshape = gate_up.producer() if gate_up is not None else None
    concat = reshape.inputs[0].producer() if reshape is not None and reshape.inputs[0] is not None else None
    if concat is None or concat.op_type != "Concat" or len(concat.inputs) != len(_HALVES):
        return None
    turns = [value.producer() for value in concat.inputs if value is not None]
    parts = [transposed_of(turn.inputs[0]) for turn in turns if turn is not None and turn.op_type == "Unsqueeze"]
    gate, up = parts if len(parts) == len(_HALVES) else (None, None)
    return None if gate is None or up is None else (gate, up)


def transposed_of(value: ir.Value | None) -> ir.Value | None:
    """Return the transposed stack that ``value`` is computed from; None if there is none."""
    node = value.producer() if value is not None else None
    is_turn = node is not None and node.op_type == "Transpose" and list(node.attributes["perm"].as_ints()) == _TURN
    return node.inputs[0] if node is not None and is_turn else None


def codes_of(value: ir.Value | None) -> ir.DataType | None:
    """Return the type of the codes that a value is directly dequantized from, or None."""
    node = value.producer() if value is not None else None
    if node is None or node.op_type != "DequantizeLinear" or node.inputs[0] is None:
        return None
    return node.inputs[0].dtype


def _stored(value: ir.Value | None) -> _Stack | None:
    if value is None or len(value.uses()) != 1:
        return None
    if is_weight(value):
        return _Stack(value, None, None)
    node = value.producer()
    if node is None or node.op_type != "DequantizeLinear" or len(node.inputs) != 2:
        return None
    codes, scales = node.inputs
    if codes is None or scales is None or not is_weight(codes) or not is_weight(scales) or codes.dtype != _CODES:
        return None
    is_of_matrices = len(_shape(scales)) < 2 or _shape(scales) == (*_shape(codes)[:2], 1)
    return _Stack(codes, scales, node) if is_of_matrices and len(codes.uses()) == 1 else None


def _fits(node: ir.Node, *stacks: _Stack) -> bool:
    """Return True if the layer computes what the node does: wide, or codes with codes in both matmuls."""
    if not inner_codes(node):
        return True
    return codes_of(node.inputs[0]) == _CODES and all(stack.scales is not None for stack in stacks)


def _split(graph: ir.Graph, node: ir.Node, gate_up: _Stack, down: _Stack) -> dict[str, Cut]:
    op = Nodes()
    cuts: dict[str, Cut] = {}
    experts, rows, columns = gate_up.shape
    pairs = []
    for first, suffix in enumerate(_HALVES):
        cut = Cut(str(gate_up.weight.name), rows, columns, first, len(_HALVES))
        transposed = _transposed_stack(op, graph, gate_up, suffix, cut, cuts)
        pairs.append(_known(op.Unsqueeze(_transposed_back(op, transposed), op.constant([2])), transposed))
    alternating = _known(op.Concat(*pairs, axis=2), pairs[0])
    stacked = _known(op.Reshape(alternating, op.constant([experts, rows, columns])), pairs[0], gate_up.shape)
    _, width, inner = down.shape
    transposed = _transposed_stack(op, graph, down, "turned", Cut(str(down.weight.name), width, inner), cuts)
    node.replace_input_with(_GATE_UP, stacked)
    node.replace_input_with(_DOWN, _transposed_back(op, transposed))
    graph.insert_before(node, op.nodes)
    for stack in (gate_up, down):
        _remove(graph, stack)
    return cuts


def _transposed_stack(op: Nodes, graph: ir.Graph, stack: _Stack, part: str, cut: Cut, cuts: dict[str, Cut]) -> ir.Value:
    """Create a separate initializer, and its dequantization."""
    name, count = f"{stack.weight.name}.{part}", stack.shape[0]
    shape = (count, cut.columns, cut.rows // cut.step)
    dtype = ir.DataType(stack.weight.const_value.dtype)
    weight = streamed(graph, name, shape, dtype)
    cuts[name] = cut
    if stack.scales is None or stack.dequantize is None:
        return weight
    scales = stack.scales
    if len(_shape(scales)) > 1:  # per row: those of a half are all equal
        name_of_scales = f"{scales.name}.{part}"
        scales = streamed(graph, name_of_scales, (count,), ir.DataType.FLOAT)
        cuts[name_of_scales] = Cut(str(stack.scales.name), cut.rows, 1, cut.first, cut.step, one=True)
    axis = {"axis": 0} if _shape(scales) else {}
    wide = stack.dequantize.outputs[0].dtype
    result = op.DequantizeLinear(weight, scales, output_dtype=wide, **axis)
    result.name, result.shape, result.type = f"{name}.wide", ir.Shape(shape), ir.TensorType(wide or _CODES)
    return result


def _transposed_back(op: Nodes, transposed: ir.Value) -> ir.Value:
    experts, columns, rows = _shape(transposed)
    return _known(op.Transpose(transposed, perm=_TURN), transposed, (experts, rows, columns))


def _known(value: ir.Value, like: ir.Value, shape: tuple[int, ...] | None = None) -> ir.Value:
    """Copy the type of another value, and its shape."""
    value.type = None if like.dtype is None else ir.TensorType(like.dtype)
    value.shape = None if shape is None else ir.Shape(shape)
    return value


def _remove(graph: ir.Graph, stack: _Stack) -> None:
    """Remove initializers without readers; scales may still have some."""
    if stack.dequantize is not None:
        graph.remove(stack.dequantize, safe=True)
    for value in (stack.weight, stack.scales):
        if value is not None and not value.uses():
            del graph.initializers[str(value.name)]


def _shape(value: ir.Value) -> tuple[int, ...]:
    shape: Any = value.shape
    return tuple(int(dim) for dim in shape)
