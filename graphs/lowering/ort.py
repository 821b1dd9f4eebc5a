"""Lowering ``ort``: the fused forms that ONNX Runtime's CPU kernels are fastest at.

Every rule is a pattern, a check that says why it does not apply, and a rewrite. Linears keep the checkpoint's
``[out, in]`` layout (``FusedMatMul`` with ``transB``, pre-packed at load like any constant), so weights stream
unchanged and a tied head needs no second copy.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRuleClassBase, RewriteRuleSet

from ...plugins.spec import DOMAIN
from .finish import PARTS_METADATA

CONTRIB = "com.microsoft"


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


class Attention(RewriteRuleClassBase):
    """Rotated q, k and ``CachedAttention`` -> ``GroupQueryAttention`` over one buffer, rotating inside.

    Its cost follows the valid length, not T. It reads the end of the window as a length, so one row at a time.
    """

    def pattern(
        self, op: Any, q: Any, k: Any, v: Any, k_cache: Any, v_cache: Any, start: Any, cos: Any, sin: Any, at: Any
    ) -> Any:
        return op.CachedAttention(
            op.RotaryEmbedding(op.Transpose(q, perm=[0, 2, 1, 3]), cos, sin, at),
            op.RotaryEmbedding(op.Transpose(k, perm=[0, 2, 1, 3]), cos, sin, at),
            op.Transpose(v, perm=[0, 2, 1, 3]),
            k_cache,
            v_cache,
            start,
            _domain=DOMAIN,
            _allow_other_attributes=True,
            _outputs=["y", "k_out", "v_out"],
        )

    def check(self, _: Any, q: ir.Value, cos: ir.Value, **__: Any) -> MatchResult:
        result = MatchResult()
        if q.shape is None or not isinstance(q.shape[2], int):
            return result.fail("the number of query heads is not static", q)
        if not isinstance(q.shape[3], int) or q.shape[3] % 16:
            return result.fail("the kernel takes head sizes that are multiples of 16", q)
        if not cos.is_initializer():
            return result.fail("the rotary table is computed in the graph", cos)
        return result

    def rewrite(
        self,
        op: Any,
        q: ir.Value,
        k: ir.Value,
        v: ir.Value,
        k_cache: ir.Value,
        v_cache: ir.Value,
        start: ir.Value,
        cos: ir.Value,
        sin: ir.Value,
        at: ir.Value,
        y: ir.Value,
        **_: Any,
    ) -> Any:
        attributes = y.producer().attributes
        heads, dim = int(q.shape[2]), int(q.shape[3])
        flat = op.Constant(value_ints=[0, 0, -1])
        width = op.Shape(at, start=1, end=2)  # shared by all layers, unlike q
        end = op.Add(start, width)
        last = op.Cast(op.Sub(end, op.Constant(value_ints=[1])), to=ir.DataType.INT32)
        total = op.Cast(op.ReduceMax(end, keepdims=0), to=ir.DataType.INT32)
        more = {}
        if attributes["window"].as_int():
            more["local_window_size"] = attributes["window"].as_int()
        if attributes["softcap"].as_float():
            more["softcap"] = attributes["softcap"].as_float()
        out, k_out, v_out = op.GroupQueryAttention(
            op.Reshape(q, flat),
            op.Reshape(k, flat),
            op.Reshape(v, flat),
            k_cache,
            v_cache,
            last,
            total,
            cos,
            sin,
            num_heads=heads,
            kv_num_heads=int(k.shape[2]),
            scale=attributes["scale"].as_float(),
            do_rotary=1,
            **more,
            _domain=CONTRIB,
            _outputs=3,
        )
        out.shape, out.type = ir.Shape([q.shape[0], q.shape[1], heads * dim]), q.type
        return op.Reshape(out, op.Constant(value_ints=[0, 0, heads, dim])), k_out, v_out


class SkipNorm(RewriteRuleClassBase):
    """``RMSNormalization(a + b)`` -> ``SkipSimplifiedLayerNormalization``, which also hands on the sum."""

    def pattern(self, op: Any, a: Any, b: Any, weight: Any) -> Any:
        total = op.Add(a, b, _outputs=["total"])
        return op.RMSNormalization(total, weight, axis=-1, _allow_other_attributes=True, _outputs=["normed"]), total

    def rewrite(self, op: Any, a: ir.Value, b: ir.Value, weight: ir.Value, normed: ir.Value, **_: Any) -> Any:
        epsilon = normed.producer().attributes["epsilon"].as_float()
        out, _mean, _variance, total = op.SkipSimplifiedLayerNormalization(
            a, b, weight, epsilon=epsilon, _domain=CONTRIB, _outputs=4
        )
        return out, total


class WidthOfTheInput(RewriteRuleClassBase):
    """The width of anything as wide as the window is the window's: what only carried a width is not computed."""

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
        return result if self._source(x) is not None else result.fail("no input is as wide", x)

    def rewrite(self, op: Any, x: ir.Value) -> Any:
        return op.Shape(self._source(x), start=1, end=2)


class CollapseReshape(RewriteRuleClassBase):
    """``Reshape(Reshape(x))`` -> the outer one alone: rewrites leave such pairs where layouts meet."""

    def pattern(self, op: Any, x: Any, inner: Any, outer: Any) -> Any:
        return op.Reshape(op.Reshape(x, inner), outer)

    def check(self, _: Any, outer: ir.Value, inner: ir.Value, **__: Any) -> MatchResult:
        result = MatchResult()
        constant = ir.convenience.get_const_tensor(outer)
        if constant is not None and 0 in constant.numpy()[2:]:
            return result.fail("the outer shape copies a dimension that the inner one made", outer)
        return result

    def rewrite(self, op: Any, x: ir.Value, outer: ir.Value, **_: Any) -> Any:
        return op.Reshape(x, outer)


class SameShape(RewriteRuleClassBase):
    """A ``Reshape`` to the shape its input has already: nothing. ONNX Runtime drops an Identity when it loads."""

    def pattern(self, op: Any, x: Any, shape: Any) -> Any:
        return op.Reshape(x, shape, _outputs=["out"])

    def check(self, _: Any, x: ir.Value, shape: ir.Value, out: ir.Value) -> MatchResult:
        result = MatchResult()
        if not x.shape:
            return result.fail("the input is a scalar, or of unknown shape", x)
        constant = ir.convenience.get_const_tensor(shape)
        kept = constant is not None and constant.numpy().tolist() == [0] * (len(x.shape) - 1) + [-1]
        if not kept and (out.shape is None or list(x.shape) != list(out.shape)):
            return result.fail("the shapes differ, or one is unknown", out)
        return result

    def rewrite(self, op: Any, x: ir.Value, **_: Any) -> Any:
        return op.Identity(x)


RULES = RewriteRuleSet([Linear.rule(), Attention.rule(), SkipNorm.rule()])
CLEANUP = RewriteRuleSet([CollapseReshape.rule()])
SAME_SHAPE = RewriteRuleSet([SameShape.rule()])


def apply(model: ir.Model) -> None:
    """Rewrite in place."""
    RULES.apply_to_model(model)
    CLEANUP.apply_to_model(model)
    RewriteRuleSet([WidthOfTheInput.rule(list(model.graph.inputs))]).apply_to_model(model)
    pack_linears(model)
    SAME_SHAPE.apply_to_model(model)
    model.opset_imports[CONTRIB] = 1


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
