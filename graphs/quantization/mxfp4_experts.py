"""Routed experts in MXFP4 blocks as stored: this project's two ops, since no pair of Q and DQ expresses them."""

from __future__ import annotations

import math

import onnx_ir as ir

from ...plugins.op_spec import DOMAIN, VERSION
from ...plugins.ops.mxfp4_gate_up.blocks import BYTES
from ...plugins.ops.sparse_experts.spec import CUBIC
from ..node_tape import Nodes
from .packed_experts import expert_terms, is_experts
from .qdq_nodes import scalar, streamed
from .quantized_weight import WeightStream
from .rewrite_rules import is_weight

_GATE_UP, _DOWN = 3, 4  # indices of the inputs of SparseExperts
_TERMS = {"alpha": 1.0, "beta": 0.0, "limit": 0.0}  # with the defaults of SparseExperts
_BLOCK = 2 * BYTES
UNSUITED = "the op requires both stacks of the experts in MXFP4 blocks, with biases, and no other node that reads them"


def keep_experts(graph: ir.Graph, node: ir.Node) -> dict[str, WeightStream]:
    """Replace a suitable ``SparseExperts`` by the ops over its stacks in blocks; returns the initializers to fill."""
    x, experts, scores, gate_up, down, gate_up_bias, down_bias = node.inputs
    if gate_up is None or down is None:
        raise ValueError(f"{node.name} has no stacks")
    count, rows, columns = _shape(gate_up)
    _, hidden, inner = _shape(down)
    op, streams = Nodes(), dict[str, WeightStream]()
    alternating = _blocks(graph, gate_up, (count, rows // 2, 2), columns, streams)
    back = _blocks(graph, down, (count, hidden), inner, streams)
    terms = {name: float(node.attributes.get_float(name, default)) for name, default in _TERMS.items()}
    terms["limit"] = terms["limit"] or math.inf  # the op has no other word for no clamp
    numbers = [scalar(graph, f"{gate_up.name}.{name}", number) for name, number in terms.items()]
    gated = op.op("Mxfp4GateUp", [x, experts, *alternating, gate_up_bias, *numbers], domain=DOMAIN)
    gated.type = ir.TensorType(ir.DataType.FLOAT)
    if experts is not None and experts.shape is not None:
        gated.shape = ir.Shape([*experts.shape, inner])
    y = op.op("Mxfp4Down", [gated, experts, scores, *back, down_bias], domain=DOMAIN)
    (old,) = node.outputs
    y.shape, y.type = old.shape, old.type
    ir.convenience.replace_nodes_and_values(graph, node, [node], op.nodes, [old], [y])
    return streams


def keepable(node: ir.Node) -> bool:
    """Return True if the ops support a ``SparseExperts``: no other reader of its stacks, both biases, no cubic term."""
    stacks = [node.inputs[index] for index in (_GATE_UP, _DOWN)]
    are_own = all(is_weight(value) and value is not None and len(value.uses()) == 1 for value in stacks)
    has_cube = expert_terms(node)[CUBIC.name] != 0
    return are_own and not has_cube and len(node.inputs) > _DOWN + 2 and None not in node.inputs


def keep_all(model: ir.Model) -> None:
    """Rewrite every suitable node of a graph, in place, for any weights; for estimates."""
    for node in tuple(model.graph):
        if is_experts(node) and keepable(node):
            keep_experts(model.graph, node)
            model.opset_imports.setdefault(DOMAIN, VERSION)


def _blocks(
    graph: ir.Graph, stack: ir.Value, rows: tuple[int, ...], columns: int, streams: dict[str, WeightStream]
) -> tuple[ir.Value, ir.Value]:
    """Replace the initializer of a stack by its codes and their exponents."""
    name = str(stack.name)
    del graph.initializers[name]
    shape = (*rows, columns // _BLOCK)
    codes = streamed(graph, name, (*shape, BYTES), ir.DataType.INT8)
    exponents = streamed(graph, f"{name}_scale", shape, ir.DataType.INT8)
    streams |= {name: WeightStream(name, scales=False), f"{name}_scale": WeightStream(name, scales=True)}
    return codes, exponents


def _shape(value: ir.Value) -> tuple[int, ...]:
    return tuple(int(dim) for dim in value.const_value.shape)
