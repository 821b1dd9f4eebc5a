"""The mask of attention over a cache: additive, so that a fused kernel takes it as it is, and shared by all layers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ...tape import Nodes

# Finite, so that no kernel meets a tile of nothing but infinities; far below any score of what was written to a cache.
_HIDDEN = {ir.DataType.FLOAT16: -65504.0}
_HIDDEN_WIDE = -1e30


def additive_mask(op: Nodes, q: ir.Value, start: ir.Value, length: int, window: int, sharing: int = 1) -> ir.Value:
    """``[B,1,S,T]`` in the type of ``q`` ``[B,H,S,D]``: 0 where position ``start + s`` sees a slot of the cache.

    The rows are there ``sharing`` times, ``[B,1,sharing * S,T]``, for heads that lie below one another.
    """
    width = op.Squeeze(op.Shape(q, start=2, end=3), op.constant([0]))
    columns = op.Range(op.constant(0), width, op.constant(1))
    position = op.Add(op.Unsqueeze(start, op.constant([1])), columns)
    if sharing > 1:
        repeated = op.Expand(op.Unsqueeze(position, op.constant([1])), op.constant([1, sharing, 1]))
        position = op.Reshape(repeated, op.constant([0, -1]))
    position = op.Unsqueeze(position, op.constant([1, 3]))
    slot = op.constant(np.arange(length))
    seen = op.LessOrEqual(slot, position)
    if window:
        seen = op.And(seen, op.Greater(slot, op.Sub(position, op.constant(window))))
    hidden = op.constant(_HIDDEN.get(q.dtype, _HIDDEN_WIDE), q.dtype)
    return op.Where(seen, op.constant(0.0, q.dtype), hidden)
