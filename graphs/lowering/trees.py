"""Draft trees: the target verifies a tree in one window, and a parallel drafter proposes several tokens per position.

A window of the target comes with ``ancestors``: the earlier columns that each column attends to. The position of a
column follows from its ancestors, not from its place in the window. A window emits the path that agrees with the
target. A chain is a tree in which every column sees all earlier ones, so the same graph verifies chains.

Where the host does not know the trees, windows come with ``skipped`` instead: for each column, the bits of the earlier
columns that it does not see. A chain skips none, whatever its length, and a kernel writes one number per draft. Such a
graph computes the ancestors, gets its random numbers by position, and returns the path.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ...plugins import graph_contract as contract
from ...plugins.op_spec import DOMAIN
from ..node_tape import Nodes

_LAST_INPUT = contract.TARGET_INPUTS[-1]
_MIN = np.array(1e-30, np.float32)  # a lower bound for probabilities, so that their logarithms are finite


def apply(model: ir.Model, *, tree_input: str = contract.ANCESTORS) -> None:
    """Rewrite the semantic graph of a target, or of a parallel drafter, in place.

    ``tree_input`` is the input that describes a tree to the target: ``ancestors`` or ``skipped``.
    """
    nodes = {node.op_type: node for node in model.graph}
    if (accepting := nodes.get("AcceptPrefix")) is not None:
        _verify_trees(model.graph, accepting, tree_input)
    elif "PlaceholderDraft" in nodes and contract.HIDDEN not in [value.name for value in model.graph.inputs]:
        _name_candidates(model.graph)


def skipped_bits(op: Nodes, skipped: ir.Value, columns: ir.Value) -> ir.Value:
    """Return bool, broadcast from ``skipped`` and ``columns``: True if a number has the bit of this column.

    Columns are any integers from 0 on; only the first 63 can be skipped.
    """
    powers = op.constant([*(1 << bit for bit in range(63)), (1 << 63) - 1])  # the last is larger than any number
    power = op.Gather(powers, op.Min(columns, op.constant(63)))
    return op.Equal(op.Mod(op.Div(skipped, power), op.constant(2)), op.constant(1))


def _verify_trees(graph: ir.Graph, accepting: ir.Node, tree_input: str) -> None:
    """Add the ancestors of every column to attention, positions and the acceptance of drafts."""
    inputs_by_name = {value.name: value for value in graph.inputs}
    position_inputs = {node.inputs[3] for node in graph if node.op_type == "RotaryEmbedding" and len(node.inputs) > 3}
    attending = [node for node in graph if node.op_type == "CachedAttention"]
    kind, op = contract.TENSORS[tree_input], Nodes()
    rows, columns = inputs_by_name["input_ids"].shape or ("B", "S")
    sizes = {"B": rows, "S": columns}
    tree = ir.Value(
        name=tree_input,
        type=ir.TensorType(ir.DataType[kind.dtype.upper()]),
        shape=ir.Shape([sizes[dim] for dim in kind.dims]),
    )
    graph.inputs.insert(1 + [*inputs_by_name].index(_LAST_INPUT), tree)
    ancestors = _ancestors(op, tree) if tree_input == contract.SKIPPED else tree
    num_visible = op.ReduceSum(op.Cast(ancestors, to=ir.DataType.INT64), op.constant([2]), keepdims=0)
    positions = op.Add(op.Unsqueeze(inputs_by_name["start"], op.constant([1])), num_visible)
    positions.type, positions.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([rows, columns])
    inputs = [*accepting.inputs, ancestors]
    if tree_input == contract.SKIPPED:
        inputs[5] = _by_depth(op, inputs_by_name, num_visible)
    graph.insert_before(graph[0], op.nodes)
    for node in attending:
        node.resize_inputs(8)
        node.replace_input_with(7, ancestors)
    for value in position_inputs:
        if value is not None:
            value.replace_all_uses_with(positions)
    outputs = [ir.Value(name=each.name, type=each.type, shape=each.shape) for each in accepting.outputs]
    path = ir.Value(name=contract.PATH, type=outputs[0].type, shape=outputs[0].shape)
    walking = ir.Node(DOMAIN, "AcceptTree", inputs, outputs=[*outputs, path], name=accepting.name)
    ir.convenience.replace_nodes_and_values(graph, accepting, [accepting], [walking], [*accepting.outputs], outputs)
    if tree_input == contract.SKIPPED:
        graph.outputs.insert(1 + [value.name for value in graph.outputs].index(contract.TARGET_OUTPUTS[-1]), path)


def _ancestors(op: Nodes, skipped: ir.Value) -> ir.Value:
    """Return bool [B,S,S]: the earlier columns that ``skipped`` i64 [B,S] does not name."""
    width = op.Squeeze(op.Shape(skipped, start=1), op.constant([0]))
    column = op.Range(op.constant(0), width, op.constant(1))
    is_earlier = op.Less(column, op.Unsqueeze(column, op.constant([1])))
    ancestors = op.And(op.Not(skipped_bits(op, op.Unsqueeze(skipped, op.constant([2])), column)), is_earlier)
    rows, columns = skipped.shape or ("B", "S")
    ancestors.type, ancestors.shape = ir.TensorType(ir.DataType.BOOL), ir.Shape([rows, columns, columns])
    return ancestors


def _by_depth(op: Nodes, inputs_by_name: Mapping[str | None, ir.Value], num_visible: ir.Value) -> ir.Value:
    """Return the random numbers [B,E] of the positions of drafts; ``uniform`` are those of a chain.

    A draft has seen all columns up to the newest token, and its ancestors behind that.
    """
    uniform, zero = inputs_by_name["uniform"], op.constant(0)
    newest = op.Sub(
        op.Sub(inputs_by_name["window_len"], inputs_by_name["draft_len"]), op.constant(1, ir.DataType.INT32)
    )
    newest = op.Unsqueeze(op.Cast(newest, to=ir.DataType.INT64), op.constant([1]))
    emitted = op.Squeeze(op.Shape(uniform, start=1), op.constant([0]))
    width = op.Squeeze(op.Shape(num_visible, start=1), op.constant([0]))
    column = op.Add(newest, op.Range(zero, emitted, op.constant(1)))
    column = op.Min(op.Max(column, zero), op.Sub(width, op.constant(1)))
    depth = op.Sub(op.GatherElements(num_visible, column, axis=1), newest)
    depth = op.Min(op.Max(depth, zero), op.Sub(emitted, op.constant(1)))
    numbers = op.GatherElements(uniform, depth, axis=1)
    numbers.type, numbers.shape = uniform.type, uniform.shape
    return numbers


def _name_candidates(graph: ir.Graph) -> None:
    """Add the most likely target ids of every position, and their log probabilities."""
    logits = next(value for value in graph.outputs if value.name == "draft_logits")
    vocab = logits.shape[-1] if logits.shape is not None else None
    count = min(contract.MAX_CANDIDATES, vocab) if isinstance(vocab, int) else contract.MAX_CANDIDATES
    tape = ir.tape.Tape()
    count_tensor = tape.initializer(ir.tensor([count], name="candidates.count"))
    minimum = tape.initializer(ir.tensor(_MIN, name="candidates.least"))
    wide = logits if logits.dtype == ir.DataType.FLOAT else tape.op("Cast", [logits], {"to": ir.DataType.FLOAT})
    likely, ids = tape.op_multi_out("TopK", [tape.op("Softmax", [wide], {"axis": -1}), count_tensor], num_outputs=2)
    scores = tape.op("Log", [tape.op("Max", [likely, minimum])])
    if (offsets := graph.initializers.get("d2t")) is not None:
        ids = tape.op("Add", [ids, tape.op("Gather", [offsets, ids])])
    else:
        ids = tape.op("Identity", [ids])
    for initializer in (count_tensor, minimum):
        graph.register_initializer(initializer)
    graph.extend(tape.nodes)
    leading = [*logits.shape][:-1] if logits.shape is not None else ["B", "K"]
    for value, name, dtype in zip(
        (ids, scores), contract.CANDIDATES, (ir.DataType.INT64, ir.DataType.FLOAT), strict=True
    ):
        value.name, value.shape = name, ir.Shape([*leading, count])
        value.type = ir.TensorType(dtype)
        graph.outputs.insert(len(contract.DRAFTER_OUTPUTS) + contract.CANDIDATES.index(name), value)
