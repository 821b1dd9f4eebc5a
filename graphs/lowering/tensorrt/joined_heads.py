"""Norms and rotary embeddings of query and key heads as one of each, for all heads of a joined linear.

TensorRT computes the mean of every norm in a separate kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import onnx_ir as ir

from ...node_tape import Nodes


@dataclass(frozen=True)
class Heads:
    """The nodes between the output of a linear ``[B,S,H*D]`` and its normed and rotated heads ``[B,H,S,D]``."""

    view: ir.Node
    norm: ir.Node
    turn: ir.Node
    rope: ir.Node

    @classmethod
    def of(cls, linear: ir.Value) -> Heads | None:
        """Return the nodes that follow a linear; None if it is followed by other nodes."""
        nodes: list[ir.Node] = []
        for kind in ("Reshape", "RMSNormalization", "Transpose", "RotaryEmbedding"):
            node = _reader(nodes[-1].outputs[0] if nodes else linear, kind)
            if node is None:
                return None
            nodes.append(node)
        heads = cls(*nodes)
        is_by_head = heads.size is not None and list(heads.turn.attributes["perm"].as_ints()) == [0, 2, 1, 3]
        return heads if is_by_head else None

    @property
    def size(self) -> int | None:
        """The size of a head; None if the norm is not one of single heads."""
        weight: Any = self.norm.inputs[1]
        return _size(self.view) if tuple(weight.shape or ()) == (_size(self.view),) else None

    @property
    def signature(self) -> object:
        """Equal for heads whose nodes differ only in the weight of the norm and in the number of heads."""
        weight: Any = self.norm.inputs[1]
        attributes = [
            tuple(sorted((name, str(each.value)) for name, each in node.attributes.items())) for node in self.nodes
        ]
        return (weight.dtype, tuple(weight.shape), *self.rope.inputs[1:], *attributes)

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """All nodes, in order."""
        return self.view, self.norm, self.turn, self.rope

    @property
    def heads(self) -> ir.Value:
        """The result, ``[B,H,S,D]``."""
        return self.rope.outputs[0]


def are_joined(linears: Sequence[ir.Value]) -> bool:
    """Return True if the heads of the first linears, at least two, would be joined."""
    return _alike(linears) is not None


def apply(model: ir.Model) -> None:
    """Join the norms and rotary embeddings behind every joined linear in place."""
    for node in tuple(model.graph):
        if node.op_type == "Split" and (found := _alike(node.outputs)) is not None:
            _join(model.graph, node, *found)


def _alike(linears: Sequence[ir.Value]) -> tuple[list[Heads], list[ir.Node]] | None:
    """Return the heads of the first linears, of one form, and the views of the rest as heads of the same size.

    None if these are not all linears, or fewer than two have norms.
    """
    parts = [part for part in takewhile(bool, map(Heads.of, linears)) if part]
    views = [_reader(linear, "Reshape") for linear in linears[len(parts) :]]
    if len(parts) < 2 or any(part.signature != parts[0].signature for part in parts):
        return None
    rest = [view for view in views if view is not None and _size(view) == parts[0].size]
    return (parts, rest) if len(rest) == len(views) else None


def _reader(value: ir.Value, kind: str) -> ir.Node | None:
    """Return the only reader of a value if it is of this kind and ``value`` is its first input."""
    uses = list(value.uses())
    return uses[0][0] if len(uses) == 1 and uses[0][1] == 0 and uses[0][0].op_type == kind else None


def _size(view: ir.Node) -> Any:
    """Return D of a view ``[B,S,H,D]``; None for any other."""
    shape = view.outputs[0].shape
    return shape[3] if shape is not None and len(shape) == 4 else None


def _join(graph: ir.Graph, split: ir.Node, parts: Sequence[Heads], rest: Sequence[ir.Node]) -> None:
    op, first = Nodes(), parts[0]
    outputs = [*(part.heads for part in parts), *(view.outputs[0] for view in rest)]
    weights: list[Any] = [part.norm.inputs[1] for part in parts]
    widths: list[Any] = [value.shape for value in split.outputs]
    size = int(weights[0].shape[0])
    counts = [int(width[-1]) // size for width in widths]
    own, others = counts[: len(parts)], counts[len(parts) :]
    # Split as heads, not before: TensorRT would copy a part of a row that a norm reads.
    every = op.Reshape(split.inputs[0], op.constant([0, 0, sum(counts), size]))
    sizes = [sum(own), *others]
    view, *views = op.op_multi_out("Split", [every, op.constant(sizes)], {"axis": 2}, num_outputs=len(sizes))
    # A norm has the same weights for all heads. Here they are ones, and the heads are scaled afterwards.
    ones = op.constant([1.0] * size, weights[0].dtype)
    normed = op.op("RMSNormalization", [view, ones], dict(first.norm.attributes))
    by_head = [op.Expand(weight, op.constant([count, size])) for weight, count in zip(weights, own, strict=True)]
    scaled = op.Mul(normed, op.Concat(*by_head, axis=0))
    transposed = op.op("Transpose", [scaled], dict(first.turn.attributes))
    rotated = op.op("RotaryEmbedding", [transposed, *first.rope.inputs[1:]], dict(first.rope.attributes))
    heads = op.op_multi_out("Split", [rotated, op.constant(own)], {"axis": 1}, num_outputs=len(own))
    joined = [*heads, *views]
    for value, like in zip(joined, outputs, strict=True):
        value.shape, value.type = like.shape, like.type
    nodes = [split, *(node for part in parts for node in part.nodes), *rest]
    ir.convenience.replace_nodes_and_values(graph, split, nodes, op.nodes, outputs, joined)
