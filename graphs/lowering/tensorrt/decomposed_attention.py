"""Attention in plain ops, for features that TensorRT's ``Attention`` lacks: soft caps, and heads above 256.

The scores are stored in memory. Sinks alone do not need it (``sink_keys.py``).
"""

from __future__ import annotations

import math

import onnx_ir as ir

from ...node_tape import Nodes

_WIDE = ir.DataType.FLOAT


def decompose_attention(
    op: Nodes,
    q: ir.Value,
    k: ir.Value,
    v: ir.Value,
    mask: ir.Value,
    sinks: ir.Value | None,
    *,
    reach: ir.Value,
    cache: ir.Shape,
    scale: float,
    softcap: float,
) -> ir.Value:
    """Compute attention, heads first ``[B,Hq,S,D]``, over the first R = ``reach`` positions of caches shaped ``cache``.

    A sink is a score ``[Hq]``. Matmuls use the graph's type, the softmax float32.
    """
    heads, groups, size = q.shape[1], cache[1], cache[3]
    mantissa, exponent = math.frexp(scale)  # scaling by a power of two does not round the queries
    queries = op.Mul(q, op.constant(2.0**exponent, q.dtype))
    grouped = op.Reshape(queries, op.constant([0, groups, -1, size]))
    products = op.MatMul(grouped, op.Transpose(k, perm=[0, 1, 3, 2]))
    by_head, by_group = (op.Concat(op.constant([0, count, -1]), reach, axis=0) for count in (heads, groups))
    wide = op.Cast(op.Reshape(products, by_head), to=_WIDE)
    scores = op.Mul(wide, op.constant(mantissa, _WIDE))
    if softcap:
        bound = op.constant(softcap, _WIDE)
        scores = op.Mul(op.Tanh(op.Div(scores, bound)), bound)
    shares = _shares(op, op.Add(scores, op.Cast(mask, to=_WIDE)), sinks)
    weights = op.Reshape(op.Cast(shares, to=q.dtype), by_group)
    return op.Reshape(op.MatMul(weights, v), op.constant([0, heads, -1, size]))


def _shares(op: Nodes, scores: ir.Value, sinks: ir.Value | None) -> ir.Value:
    """Compute softmax over the last axis; a sink is an unused extra column that only adds to the denominator."""
    if sinks is None:
        return op.Softmax(scores, axis=-1)
    last = op.constant([3])
    sink = op.Reshape(op.Cast(sinks, to=_WIDE), op.constant([1, -1, 1, 1]))
    top = op.Max(op.ReduceMax(scores, last, keepdims=1), sink)
    weights = op.Exp(op.Sub(scores, top))
    total = op.Add(op.ReduceSum(weights, last, keepdims=1), op.Exp(op.Sub(sink, top)))
    return op.Div(weights, total)
