"""Attention sinks for TensorRT's ``Attention``, which has no input for them: one more key, whose value is zero.

The score of that key must be the sink of the query's head, although all heads of a group share keys. Heads therefore
get more dimensions, in which a query has the sink of its head, the new key has 1, and all other keys have 0. All heads
share one mask, and the fused kernel does not store scores.

Keys and dimensions grow by eight numbers, 16 bytes in the types that TensorRT computes in, so that rows stay aligned
for loads of that size. All new keys but the first are masked.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ...node_tape import Nodes

ADDED = 8  # keys, and dimensions of a head
_WIDE = ir.DataType.FLOAT
_PARTS = 2  # dimensions of a sink: its rounded number, and the rest


def sink_queries(op: Nodes, q: ir.Value, sinks: ir.Value, scale: float) -> ir.Value:
    """Return queries ``[B,Hq,S,D]`` with the sinks ``[Hq]`` in new dimensions; ``scale`` multiplies them later."""
    exact = op.Div(op.Cast(sinks, to=_WIDE), op.constant(scale, _WIDE))
    rounded = op.Cast(exact, to=q.dtype)
    rest = op.Cast(op.Sub(exact, op.Cast(rounded, to=_WIDE)), to=q.dtype)
    by_head = op.constant([1, -1, 1, 1])
    both = op.Concat(op.Reshape(rounded, by_head), op.Reshape(rest, by_head), axis=3)
    row = op.Pad(both, op.constant([0] * 7 + [ADDED - _PARTS]), op.constant(0.0, q.dtype))
    shape = op.Concat(op.Shape(q, start=0, end=3), op.constant([ADDED]), axis=0)
    return op.Concat(q, op.Expand(row, shape), axis=3)


def sink_key(op: Nodes, keys: ir.Value, cache: ir.Shape, dtype: ir.DataType) -> ir.Value:
    """Return keys ``[B,H,R,D]`` of a ``cache`` of this shape, with the new ones behind them."""
    _, heads, _, size = cache
    new = np.zeros((1, 1, ADDED, size + ADDED))
    new[..., 0, size : size + _PARTS] = 1
    shape = op.Concat(op.Shape(keys, start=0, end=1), op.constant([heads, *new.shape[2:]]), axis=0)
    return op.Concat(_padded(op, keys, 0, dtype), op.Expand(op.constant(new, dtype), shape), axis=2)


def sink_value(op: Nodes, values: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Return values ``[B,H,R,D]`` with those of the new keys behind them."""
    return _padded(op, values, ADDED, dtype)


def sink_mask(op: Nodes, mask: ir.Value, hidden: float, dtype: ir.DataType) -> ir.Value:
    """Return the mask ``[B,1,S,R]`` with the new keys, where ``hidden`` masks."""
    visible = op.Pad(mask, op.constant([0] * 7 + [1]), op.constant(0.0, dtype))
    return op.Pad(visible, op.constant([0] * 7 + [ADDED - 1]), op.constant(hidden, dtype))


def _padded(op: Nodes, value: ir.Value, keys: int, dtype: ir.DataType) -> ir.Value:
    """Return a value with zeros behind its keys and its dimensions."""
    return op.Pad(value, op.constant([0] * 6 + [keys, ADDED]), op.constant(0.0, dtype))
