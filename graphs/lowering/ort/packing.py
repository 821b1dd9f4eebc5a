"""Linears that share an input as one: of gate and up, of q, k and v."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from ..finish import PARTS_METADATA
from .contrib import CONTRIB

_KINDS = ("FusedMatMul", "MatMulNBits")


def pack_linears(model: ir.Model) -> None:
    """Linears with the same input become one over their stacked weights, split afterwards.

    Only linears of one kind: all wide, or all of codes with the same bits in the same blocks.
    """
    groups: dict[Any, list[ir.Node]] = defaultdict(list)
    for node in model.graph:
        if node.op_type in _KINDS and all(_own(weight) for weight in node.inputs[1:]):
            groups[node.inputs[0], node.op_type, tuple(sorted(_kind(node).items()))].append(node)
    for nodes in groups.values():
        if len(nodes) > 1:
            _pack(model, nodes)


def _own(weight: ir.Value | None) -> bool:
    """Whether only one node reads it, and its values are still to come."""
    tensor = None if weight is None else weight.const_value
    return weight is not None and isinstance(tensor, ir.ExternalTensor) and len(weight.uses()) == 1


def _kind(node: ir.Node) -> dict[str, Any]:
    """Attributes that the packed node has too. Its weights, and the linears' own, are ``[out, ...]``."""
    return {name: attribute.value for name, attribute in node.attributes.items() if name != "N"}


def _pack(model: ir.Model, nodes: list[ir.Node]) -> None:
    first, graph = nodes[0], model.graph
    weights: list[Any] = [list(node.inputs[1:]) for node in nodes]
    sizes = [int(own[0].shape[0]) for own in weights]
    packed = [_stacked(graph, parts) for parts in zip(*weights, strict=True)]
    attributes = _kind(first) | ({"N": sum(sizes)} if first.op_type == "MatMulNBits" else {})
    split = ir.Value(
        name=f"{packed[0].name}.sizes", shape=ir.Shape([len(sizes)]), type=ir.TensorType(ir.DataType.INT64)
    )
    split.const_value = ir.tensor(sizes, dtype=ir.DataType.INT64, name=split.name)
    graph.register_initializer(split)
    product = ir.node(first.op_type, [first.inputs[0], *packed], attributes, domain=CONTRIB)
    parts = ir.node("Split", [product.outputs[0], split], {"axis": -1}, num_outputs=len(nodes))
    graph.insert_before(first, [product, parts])
    for node, part in zip(nodes, parts.outputs, strict=True):
        node.outputs[0].replace_all_uses_with(part)
        part.shape, part.type = node.outputs[0].shape, node.outputs[0].type
    graph.remove(nodes, safe=True)
    for own in weights:
        for weight in own:
            del graph.initializers[str(weight.name)]


def _stacked(graph: ir.Graph, parts: Sequence[ir.Value]) -> ir.Value:
    """One initializer that has ``parts`` along axis 0."""
    names = [str(part.name) for part in parts]
    tensors: list[Any] = [part.const_value for part in parts]
    shape = ir.Shape([sum(int(tensor.shape[0]) for tensor in tensors), *tensors[0].shape[1:]])
    name, dtype = "+".join(names), tensors[0].dtype
    packed = ir.Value(name=name, shape=shape, type=ir.TensorType(dtype))
    packed.const_value = ir.ExternalTensor("weights", None, None, dtype, shape=shape, name=name)
    packed.metadata_props[PARTS_METADATA] = json.dumps(names)
    graph.register_initializer(packed)
    return packed
