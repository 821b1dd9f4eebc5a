"""Clean-up after the rewrites of attention, experts and linears: norms, shape arithmetic, packing of linears."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRuleClassBase

from ....plugins.ops.quantized_linear.packed_weights import TILE
from ...names import CONTRIB
from ..shared_passes import stacked_parts

_PACKED = ("QuantizedLinear", "WideLinear")
_KINDS = ("FusedMatMul", "MatMulNBits", *_PACKED)
_ROWS = {"MatMulNBits": "N"} | dict.fromkeys(_PACKED, "rows")  # the attribute with the number of weight rows


class SkipSimplifiedLayerNormalizationFusion(RewriteRuleClassBase):
    """``RMSNormalization(a + b)`` -> ``SkipSimplifiedLayerNormalization``, which also outputs the sum."""

    def pattern(self, op: Any, a: Any, b: Any, weight: Any) -> Any:
        total = op.Add(a, b, _outputs=["total"])
        return op.RMSNormalization(total, weight, axis=-1, _allow_other_attributes=True, _outputs=["normed"]), total

    def check(self, _: Any, a: ir.Value, b: ir.Value, **__: Any) -> MatchResult:
        result = MatchResult()
        if a.shape is None or b.shape is None or len(a.shape) != 3 or list(a.shape) != list(b.shape):
            return result.fail("the kernel adds two tensors [B,S,H], but one of these inputs may be a bias", b)
        return result

    def rewrite(self, op: Any, a: ir.Value, b: ir.Value, weight: ir.Value, normed: ir.Value, **_: Any) -> Any:
        epsilon = normed.producer().attributes["epsilon"].as_float()
        out, _mean, _variance, total = op.SkipSimplifiedLayerNormalization(
            a, b, weight, epsilon=epsilon, _domain=CONTRIB, _outputs=4
        )
        return out, total


class InputWidth(RewriteRuleClassBase):
    """Replace the width of any tensor as wide as the window by the input's, so that shape-only nodes disappear."""

    def __init__(self, inputs: list[ir.Value]) -> None:
        super().__init__()
        self.inputs = inputs

    def _source(self, x: ir.Value) -> ir.Value | None:
        if x.shape is None or len(x.shape) < 2 or x in self.inputs:
            return None
        same = (v for v in self.inputs if v.shape is not None and len(v.shape) > 1 and v.shape[1] == x.shape[1])
        return next(same, None)

    def pattern(self, op: Any, x: Any) -> Any:
        return op.Shape(x, start=1, end=2)

    def check(self, _: Any, x: ir.Value) -> MatchResult:
        result = MatchResult()
        return result if self._source(x) is not None else result.fail("no input has this width", x)

    def rewrite(self, op: Any, x: ir.Value) -> Any:
        return op.Shape(self._source(x), start=1, end=2)


class CollapseReshape(RewriteRuleClassBase):
    """``Reshape(Reshape(x))`` -> the outer one: rewrites leave such pairs where layouts meet."""

    def pattern(self, op: Any, x: Any, inner: Any, outer: Any) -> Any:
        return op.Reshape(op.Reshape(x, inner), outer)

    def check(self, _: Any, outer: ir.Value, inner: ir.Value, **__: Any) -> MatchResult:
        result = MatchResult()
        constant = ir.convenience.get_const_tensor(outer)
        if constant is not None and 0 in constant.numpy()[2:]:
            return result.fail("the outer shape copies a dimension that the inner one created", outer)
        return result

    def rewrite(self, op: Any, x: ir.Value, outer: ir.Value, **_: Any) -> Any:
        return op.Reshape(x, outer)


class SameShape(RewriteRuleClassBase):
    """Remove a ``Reshape`` to the same shape. ONNX Runtime drops the Identity when it loads."""

    def pattern(self, op: Any, x: Any, shape: Any) -> Any:
        return op.Reshape(x, shape, _outputs=["out"])

    def check(self, _: Any, x: ir.Value, shape: ir.Value, out: ir.Value) -> MatchResult:
        result = MatchResult()
        if not x.shape:
            return result.fail("the input is a scalar, or has an unknown shape", x)
        constant = ir.convenience.get_const_tensor(shape)
        is_copy = constant is not None and constant.numpy().tolist() == [0] * (len(x.shape) - 1) + [-1]
        if not is_copy and (out.shape is None or list(x.shape) != list(out.shape)):
            return result.fail("the shapes differ, or one is unknown", out)
        return result

    def rewrite(self, op: Any, x: ir.Value, **_: Any) -> Any:
        return op.Identity(x)


def pack_linears(model: ir.Model) -> None:
    """Pack linears with the same input into one with stacked weights, and split its output.

    Only linears of the same kind are packed: all wide, or all with codes of the same bits and blocks.
    """
    groups: dict[Any, list[ir.Node]] = defaultdict(list)
    for node in model.graph:
        if node.op_type in _KINDS and _can_be_stacked(node):
            groups[node.inputs[0], node.op_type, tuple(sorted(_kind(node).items()))].append(node)
    for nodes in groups.values():
        if len(nodes) > 1:
            _pack(model, nodes)


def _can_be_stacked(node: ir.Node) -> bool:
    """Return True if no other node reads its weights, and no padding rows would end up inside the stack."""
    own = all(_is_exclusive(weight) for weight in node.inputs[1:])
    return own and not (node.op_type in _PACKED and _rows(node) % TILE)


def _is_exclusive(weight: ir.Value | None) -> bool:
    """Return True if only one node reads it, and its values are streamed."""
    tensor = None if weight is None else weight.const_value
    return weight is not None and isinstance(tensor, ir.ExternalTensor) and len(weight.uses()) == 1


def _kind(node: ir.Node) -> dict[str, Any]:
    """Return the attributes that the packed node keeps. All weights are ``[out, ...]``."""
    return {name: attribute.value for name, attribute in node.attributes.items() if name not in _ROWS.values()}


def _rows(node: ir.Node) -> int:
    """Return the number of rows of its weight."""
    weight: Any = node.inputs[1]
    attribute = _ROWS.get(node.op_type)
    return int(node.attributes[attribute].as_int()) if attribute else int(weight.shape[0])


def _pack(model: ir.Model, nodes: list[ir.Node]) -> None:
    first, graph = nodes[0], model.graph
    weights: list[Any] = [list(node.inputs[1:]) for node in nodes]
    sizes = [_rows(node) for node in nodes]
    packed = [stacked_parts(graph, parts) for parts in zip(*weights, strict=True)]
    attributes = _kind(first) | ({_ROWS[first.op_type]: sum(sizes)} if first.op_type in _ROWS else {})
    split = ir.Value(
        name=f"{packed[0].name}.sizes", shape=ir.Shape([len(sizes)]), type=ir.TensorType(ir.DataType.INT64)
    )
    split.const_value = ir.tensor(sizes, dtype=ir.DataType.INT64, name=split.name)
    graph.register_initializer(split)
    product = ir.node(first.op_type, [first.inputs[0], *packed], attributes, domain=first.domain)
    parts = ir.node("Split", [product.outputs[0], split], {"axis": -1}, num_outputs=len(nodes))
    graph.insert_before(first, [product, parts])
    for node, part in zip(nodes, parts.outputs, strict=True):
        node.outputs[0].replace_all_uses_with(part)
        part.shape, part.type = node.outputs[0].shape, node.outputs[0].type
    graph.remove(nodes, safe=True)
    for inputs in weights:
        for weight in inputs:
            del graph.initializers[str(weight.name)]
