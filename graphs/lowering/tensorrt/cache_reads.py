"""Keys that a layer attends to: the first R positions, or with a sliding window those that its queries can see.

Attention over part of a cache copies that part anyway (docs/decisions/additive-mask.md), so the copy can begin at
another position in every row. It is a ``Gather`` from the entries of all rows and heads. Its indices are the same for
all layers with the same window and number of heads. There is one for each position and head, not for each number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ...node_tape import Nodes

_MULTIPLE = 8  # positions, so that rows of masks are aligned for loads of 16 bytes
_OUT_OF_RANGE = 2**62  # a position behind all others


@dataclass(frozen=True)
class CacheReads:
    """The ``positions`` of keys: i64 [R] if they are the same in all rows, or [B,N] if each row has its own.

    The first ``cached`` i64 [1] keys are read from the caches. The others, if any, are those of the window, from their
    own tensors. ``entries`` i64 [B,cached,H] numbers the keys to read in caches ``[B*H*T, D]``; None if they are the
    first ones of every row.
    """

    positions: ir.Value
    cached: ir.Value
    entries: ir.Value | None
    is_by_row: bool

    def of_cache(self, op: Nodes, cache: ir.Value, size: int) -> ir.Value:
        """Return what is read of a ``cache`` ``[B,H,T,D]`` with heads of this size: ``[B,H,cached,D]``."""
        if self.entries is None:
            return op.Slice(cache, op.constant([0]), self.cached, op.constant([2]))
        flat = op.Reshape(cache, op.constant([-1, size]))
        # In the layout of the fused kernel, for which TensorRT would copy once more.
        return op.Transpose(op.Gather(flat, self.entries, axis=0), perm=[0, 2, 1, 3])


def cache_reads(
    op: Nodes, q: ir.Value, start: ir.Value, positions: ir.Value, window: int, cache: ir.Shape, *, window_last: bool
) -> CacheReads:
    """Return the keys for queries ``[B,H,S,D]`` from ``start`` [B] on.

    ``positions`` are 0 to R - 1, and no row reads beyond R, where only idle rows are. With a ``window``, each row has
    the positions up to its last query: S queries see window + S - 1. With ``window_last``, the last S keys are those of
    the window, from their own tensors.
    """
    columns, reach, zero = op.Shape(q, start=2, end=3), op.Shape(positions), op.constant(0)
    read, steps, count = positions, positions, reach
    entries = None
    if window:
        tiles = op.Div(op.Add(columns, op.constant([window + _MULTIPLE - 2])), op.constant([_MULTIPLE]))
        count = op.Min(op.Mul(tiles, op.constant([_MULTIPLE])), reach)
        steps = op.Range(zero, op.Squeeze(count, op.constant([0])), op.constant(1))
    cached = op.Sub(count, columns) if window_last else count
    if window:
        first = op.Sub(op.Add(start, columns), count)
        first = op.Unsqueeze(op.Max(op.Min(first, op.Sub(reach, count)), zero), op.constant([1]))
        read = op.Add(first, steps)  # [B,W]
        there = op.Slice(read, op.constant([0]), cached, op.constant([1])) if window_last else read
        entries = _entries(op, there, start, cache)
    if window_last:
        read = _with_window_last(op, read, op.Sub(steps, cached), op.Unsqueeze(start, op.constant([1])))
    return CacheReads(read, cached, entries, is_by_row=bool(window) or window_last)


def _entries(op: Nodes, read: ir.Value, start: ir.Value, cache: ir.Shape) -> ir.Value:
    """Return the numbers of positions ``[B,W]`` in caches ``[B*H*T, D]``, by head: ``[B,W,H]``."""
    heads, length = cache[1], cache[2]
    if not isinstance(heads, int) or not isinstance(length, int):
        raise TypeError(f"a cache of fixed heads and length is expected, not {cache}")
    rows = op.Range(op.constant(0), op.Squeeze(op.Shape(start), op.constant([0])), op.constant(1))
    before = op.Add(
        op.Unsqueeze(op.Mul(rows, op.constant(heads * length)), op.constant([1, 2])),
        op.constant(np.arange(heads).reshape(1, 1, heads) * length),
    )
    return op.Add(op.Unsqueeze(read, op.constant([2])), before)


def _with_window_last(op: Nodes, read: ir.Value, column: ir.Value, start: ir.Value) -> ir.Value:
    """Return the position of every key ``[B,N]``; from ``column`` 0 on, keys are those of windows from ``start`` [B,1].

    What the caches hold from there on is nowhere: this pass replaces it.
    """
    cached = op.Where(op.Less(read, start), read, op.constant(_OUT_OF_RANGE))
    return op.Where(op.Less(column, op.constant(0)), cached, op.Add(start, column))
