"""Routers that normalize the probabilities of the selected experts, as softmax of the selected logits.

The probabilities of all experts, and the sum of the selected ones, would be kernels of their own. The largest logits
are the largest probabilities, and their softmax is the same as the normalized probabilities.
"""

from __future__ import annotations

import onnx_ir as ir

from ...node_tape import Nodes


def apply(model: ir.Model) -> None:
    """Move the softmax of every such router behind its top-k, in place."""
    for node in tuple(model.graph):
        if node.op_type == "Softmax" and (found := _normalized(node)) is not None:
            _rewrite(model.graph, node, *found)


def _normalized(softmax: ir.Node) -> tuple[ir.Node, ir.Node, ir.Node] | None:
    """Return top-k, sum and division behind a softmax; None if its values are used otherwise."""
    (top,) = _readers(softmax.outputs[0], "TopK") or (None,)
    if top is None or {_axis(softmax), _axis(top)} != {-1} or not top.attributes.get_int("largest", 1):
        return None
    readers = {node.op_type: node for node, _ in top.outputs[0].uses()}
    total, share = readers.get("ReduceSum"), readers.get("Div")
    if total is None or share is None or len(top.outputs[0].uses()) != 2:
        return None
    if list(share.inputs) != [top.outputs[0], total.outputs[0]] or len(total.outputs[0].uses()) != 1:
        return None
    axes = ir.convenience.get_const_tensor(total.inputs[1]) if len(total.inputs) > 1 and total.inputs[1] else None
    is_over_selected = axes is not None and axes.numpy().tolist() == [-1] and total.attributes.get_int("keepdims", 1)
    return (top, total, share) if is_over_selected else None


def _readers(value: ir.Value, kind: str) -> list[ir.Node]:
    """Return the only reader of a value if it is of this kind."""
    readers = [node for node, _ in value.uses()]
    return readers if len(readers) == 1 and readers[0].op_type == kind else []


def _axis(node: ir.Node) -> int:
    return node.attributes.get_int("axis", -1)


def _rewrite(graph: ir.Graph, softmax: ir.Node, top: ir.Node, total: ir.Node, share: ir.Node) -> None:
    op = Nodes()
    logits, experts = op.op_multi_out("TopK", [softmax.inputs[0], top.inputs[1]], dict(top.attributes), num_outputs=2)
    shares = op.Softmax(logits, axis=-1)
    old, new = [share.outputs[0], top.outputs[1]], [shares, experts]
    for value, like in zip(new, old, strict=True):
        value.shape, value.type = like.shape, like.type
    ir.convenience.replace_nodes_and_values(graph, softmax, [softmax, top, total, share], op.nodes, old, new)
