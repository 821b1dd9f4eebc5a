"""Draft trees: the target verifies a tree in one window, and a parallel drafter proposes several tokens per position.

A window of the target comes with ``ancestors``: the earlier columns that each column attends to. The position of a
column follows from its ancestors, not from its place in the window. A window emits the path that agrees with the
target. A chain is a tree in which every column sees all earlier ones, so the same graph verifies chains.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ....plugins import graph_contract as contract
from ....plugins.op_spec import DOMAIN

_LAST_INPUT = contract.TARGET_INPUTS[-1]
_LEAST = np.array(1e-30, np.float32)  # a lower bound for probabilities, so that their logarithms are finite


def apply(model: ir.Model) -> None:
    """Rewrite the semantic graph of a target, or of a parallel drafter, in place."""
    nodes = {node.op_type: node for node in model.graph}
    if (accepting := nodes.get("AcceptPrefix")) is not None:
        _verify_trees(model.graph, accepting)
    elif "PlaceholderDraft" in nodes and contract.HIDDEN not in [value.name for value in model.graph.inputs]:
        _name_candidates(model.graph)


def _verify_trees(graph: ir.Graph, accepting: ir.Node) -> None:
    """Add the ancestors of every column to attention, positions and the acceptance of drafts."""
    given = {value.name: value for value in graph.inputs}
    places = {node.inputs[3] for node in graph if node.op_type == "RotaryEmbedding" and len(node.inputs) > 3}
    attending = [node for node in graph if node.op_type == "CachedAttention"]
    rows, columns = given["input_ids"].shape or ("B", "S")
    ancestors = ir.Value(
        name=contract.ANCESTORS, type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([rows, columns, columns])
    )
    graph.inputs.insert(1 + [*given].index(_LAST_INPUT), ancestors)
    for node in attending:
        node.resize_inputs(8)
        node.replace_input_with(7, ancestors)
    tape = ir.tape.Tape()
    two = tape.initializer(ir.tensor([2], name=f"{ancestors.name}.axis"))
    one = tape.initializer(ir.tensor([1], name="start.axis"))
    seen = tape.op("ReduceSum", [tape.op("Cast", [ancestors], {"to": 7}), two], {"keepdims": 0})
    positions = tape.op("Add", [tape.op("Unsqueeze", [given["start"], one]), seen])
    positions.type, positions.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([rows, columns])
    graph.register_initializer(two)
    graph.register_initializer(one)
    graph.insert_before(graph[0], tape.nodes)
    for value in places:
        if value is not None:
            value.replace_all_uses_with(positions)
    outputs = [ir.Value(name=each.name, type=each.type, shape=each.shape) for each in accepting.outputs]
    walking = ir.Node(DOMAIN, "AcceptTree", [*accepting.inputs, ancestors], outputs=outputs, name=accepting.name)
    ir.convenience.replace_nodes_and_values(
        graph, accepting, [accepting], [walking], [*accepting.outputs], [*walking.outputs]
    )


def _name_candidates(graph: ir.Graph) -> None:
    """Add the most likely target ids of every position, and their log probabilities."""
    logits = next(value for value in graph.outputs if value.name == "draft_logits")
    vocab = logits.shape[-1] if logits.shape is not None else None
    count = min(contract.MOST_CANDIDATES, vocab) if isinstance(vocab, int) else contract.MOST_CANDIDATES
    tape = ir.tape.Tape()
    most = tape.initializer(ir.tensor([count], name="candidates.count"))
    least = tape.initializer(ir.tensor(_LEAST, name="candidates.least"))
    likely, ids = tape.op_multi_out("TopK", [tape.op("Softmax", [logits], {"axis": -1}), most], num_outputs=2)
    scores = tape.op("Log", [tape.op("Max", [likely, least])])
    if (offsets := graph.initializers.get("d2t")) is not None:
        ids = tape.op("Add", [ids, tape.op("Gather", [offsets, ids])])
    else:
        ids = tape.op("Identity", [ids])
    for initializer in (most, least):
        graph.register_initializer(initializer)
    graph.extend(tape.nodes)
    leading = [*logits.shape][:-1] if logits.shape is not None else ["B", "K"]
    for value, name, dtype in zip((ids, scores), contract.CANDIDATES, (ir.DataType.INT64, logits.dtype), strict=True):
        value.name, value.shape = name, ir.Shape([*leading, count])
        value.type = ir.TensorType(dtype or ir.DataType.FLOAT)
        graph.outputs.insert(len(contract.DRAFTER_OUTPUTS) + contract.CANDIDATES.index(name), value)
