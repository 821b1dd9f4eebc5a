"""Linears over ``[out, in]`` weights as they are stored: ``FusedMatMul`` pre-packs them at load like any constant."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRuleClassBase

from ..finish import PARTS_METADATA
from .contrib import CONTRIB


class Linear(RewriteRuleClassBase):
    """``MatMul(x, Transpose(weight))`` -> ``FusedMatMul(x, weight, transB=1)``: no transposed copy of the weight."""

    def __init__(self) -> None:
        super().__init__(remove_nodes=False)  # two linears may share one weight

    def pattern(self, op: Any, x: Any, weight: Any) -> Any:
        return op.MatMul(x, op.Transpose(weight, perm=[1, 0]))

    def check(self, _: Any, weight: ir.Value, **__: Any) -> MatchResult:
        result = MatchResult()
        return result if weight.is_initializer() else result.fail("the right side is computed, not a weight", weight)

    def rewrite(self, op: Any, x: ir.Value, weight: ir.Value) -> Any:
        return op.FusedMatMul(x, weight, transB=1, _domain=CONTRIB)


def pack_linears(model: ir.Model) -> None:
    """Linears with the same input become one over their stacked weights, split afterwards (gate and up; q, k, v)."""
    groups: dict[tuple[ir.Value, int], list[ir.Node]] = defaultdict(list)
    for node in model.graph:
        if node.op_type == "FusedMatMul" and node.inputs[1] is not None and len(node.inputs[1].uses()) == 1:
            groups[node.inputs[0], len(node.inputs[1].shape)].append(node)
    for (source, _), nodes in groups.items():
        if len(nodes) > 1:
            _pack(model, source, nodes)


def _pack(model: ir.Model, source: ir.Value, nodes: list[ir.Node]) -> None:
    weights = [n.inputs[1] for n in nodes]
    names = [w.name for w in weights if w is not None]
    sizes = [int(w.shape[0]) for w in weights if w is not None and w.shape is not None]
    first = weights[0].const_value
    shape = ir.Shape([sum(sizes), int(first.shape[1])])
    name = "+".join(str(n) for n in names)
    packed = ir.Value(name=name, shape=shape, type=ir.TensorType(first.dtype))
    packed.const_value = ir.ExternalTensor("weights", None, None, first.dtype, shape=shape, name=name)
    packed.metadata_props[PARTS_METADATA] = json.dumps(names)
    model.graph.register_initializer(packed)
    split = ir.Value(name=f"{name}.sizes", shape=ir.Shape([len(sizes)]), type=ir.TensorType(ir.DataType.INT64))
    split.const_value = ir.tensor(sizes, dtype=ir.DataType.INT64, name=split.name)
    model.graph.register_initializer(split)
    product = ir.node("FusedMatMul", [source, packed], {"transB": 1}, domain=CONTRIB)
    parts = ir.node("Split", [product.outputs[0], split], {"axis": -1}, num_outputs=len(nodes))
    model.graph.insert_before(nodes[0], [product, parts])
    for node, part in zip(nodes, parts.outputs, strict=True):
        node.outputs[0].replace_all_uses_with(part)
        part.shape, part.type = node.outputs[0].shape, node.outputs[0].type
    model.graph.remove(nodes, safe=True)
    for weight in weights:
        del model.graph.initializers[str(weight.name)]
