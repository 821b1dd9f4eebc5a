"""Columns that hold no token have the experts of one that does, so that no expert is read for them alone.

Idle rows and the columns behind a window run through the target with the others, and a router chooses experts for
whatever stands there. What comes of them nobody reads.
"""

from __future__ import annotations

import onnx_ir as ir

from ...plugins.op_spec import DOMAIN
from ..node_tape import Nodes

_FLOAT = ir.DataType.FLOAT


def share_experts(model: ir.Model) -> None:
    """Give every layer of experts, in place, the first token's for columns behind ``window_len``."""
    given = {value.name: value for value in model.graph.inputs}
    layers = [node for node in model.graph if node.domain == DOMAIN and node.op_type == "SparseExperts"]
    if not layers or not {"input_ids", "window_len"} <= given.keys():
        return
    op = Nodes()
    columns = op.Range(op.constant(0), op.Squeeze(op.Shape(given["input_ids"], start=1)), op.constant(1))
    lengths = op.Unsqueeze(op.Cast(given["window_len"], to=ir.DataType.INT64), op.constant([1]))
    holds = op.Reshape(op.Less(columns, lengths), op.constant([-1, 1]))
    first = op.Reshape(op.ArgMax(op.Cast(holds, to=_FLOAT), axis=0), op.constant([1]))
    model.graph.insert_before(model.graph[0], op.nodes)
    for node in layers:
        experts, tape = node.inputs[1], Nodes()
        shared = tape.Where(holds, experts, tape.Gather(experts, first, axis=0))
        shared.shape, shared.type = experts.shape, experts.type
        model.graph.insert_before(node, tape.nodes)
        node.replace_input_with(1, shared)
