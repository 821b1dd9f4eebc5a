"""Attention for ONNX Runtime: ``GroupQueryAttention`` on an in-place cache, whose cost follows the valid length."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRuleClassBase

from ....plugins.op_spec import DOMAIN
from ...names import CONTRIB


def _pattern(op: Any, q: Any, k: Any, v: Any, cos: Any, sin: Any, at: Any, *rest: Any) -> Any:
    return op.CachedAttention(
        op.RotaryEmbedding(op.Transpose(q, perm=[0, 2, 1, 3]), cos, sin, at),
        op.RotaryEmbedding(op.Transpose(k, perm=[0, 2, 1, 3]), cos, sin, at),
        op.Transpose(v, perm=[0, 2, 1, 3]),
        *rest,
        _domain=DOMAIN,
        _allow_other_attributes=True,
        _outputs=["y", "k_out", "v_out"],
    )


class _GroupQueryAttentionFusion(RewriteRuleClassBase):
    """Rotated q, k and ``CachedAttention`` -> ``GroupQueryAttention`` on one buffer, with rotation inside.

    Its cost follows the valid length, not T. It takes the end of the window as a length, so it supports a single row.
    """

    def check(self, _: Any, q: ir.Value, cos: ir.Value, **__: Any) -> MatchResult:
        result = MatchResult()
        if q.shape is None or not isinstance(q.shape[2], int):
            return result.fail("the number of query heads is not static", q)
        if not isinstance(q.shape[3], int) or q.shape[3] % 16:
            return result.fail("the kernel supports only head sizes that are multiples of 16", q)
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
        sinks: ir.Value | None = None,
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
            *([None, None, sinks] if sinks is not None else []),
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


class GroupQueryAttentionFusion(_GroupQueryAttentionFusion):
    """The rule for plain attention."""

    def pattern(
        self, op: Any, q: Any, k: Any, v: Any, k_cache: Any, v_cache: Any, start: Any, cos: Any, sin: Any, at: Any
    ) -> Any:
        return _pattern(op, q, k, v, cos, sin, at, k_cache, v_cache, start)


class GroupQueryAttentionWithSinksFusion(_GroupQueryAttentionFusion):
    """The rule for attention as in GPT-OSS, with an extra softmax column per head."""

    def pattern(
        self,
        op: Any,
        q: Any,
        k: Any,
        v: Any,
        k_cache: Any,
        v_cache: Any,
        start: Any,
        sinks: Any,
        cos: Any,
        sin: Any,
        at: Any,
    ) -> Any:
        return _pattern(op, q, k, v, cos, sin, at, k_cache, v_cache, start, sinks)
