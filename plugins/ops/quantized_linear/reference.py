"""NumPy reference of ``QuantizedLinear``, bit for bit: one row and one block at a time, in the kernels' order."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .packed_formats import PACKED_FORMATS
from .packed_weights import BLOCK, Unpacked, unpacked

Array = NDArray[Any]

NEGLIGIBLE = 2.0**-100  # smaller blocks count as zeros: not every path can tell their scale from 0


def quantized_linear(x: Array, codes: Array, scales: Array, *, format: str, rows: int) -> tuple[Array]:
    """Return y, float32 [..., rows]."""
    matrix = unpacked(format, codes, scales, rows)
    scaled = (matrix.codes.reshape(*matrix.steps.shape, -1) * matrix.steps[..., None]).reshape(matrix.codes.shape)
    y = [_row(row, format, matrix, scaled) for row in x.reshape(-1, x.shape[-1])]
    return (np.array(y, np.float32).reshape(*x.shape[:-1], rows),)


def round_block(x: Array) -> tuple[Array, np.float32]:
    """Return codes int32 [32] in -127..127, and their scale, which is NaN if a number is not finite."""
    largest = np.abs(x).max()
    if not np.isfinite(largest):
        return np.zeros(BLOCK, np.int32), np.float32(np.nan)
    if largest < NEGLIGIBLE:
        return np.zeros(BLOCK, np.int32), np.float32(0)
    inverse = np.float32(127) / largest
    return np.rint(x * inverse).astype(np.int32), largest / np.float32(127)


def fused_multiply_add(a: Array, b: Array, c: Array) -> Array:
    """Return a * b + c of float32 arrays, rounded once.

    The product is exact in float64. The sum is rounded to odd there, so that the second rounding cannot change the
    result (Boldo and Melquiond, Emulation of a FMA and correctly rounded sums, 2008).
    """
    product, addend = a.astype(np.float64) * b, c.astype(np.float64)
    total = product + addend
    back = total - product
    rounding_error = (product - (total - back)) + (addend - back)
    is_even = (total.view(np.int64) & 1) == 0
    towards = np.where(rounding_error > 0, np.inf, -np.inf)
    odd = np.where(is_even & (rounding_error != 0) & np.isfinite(total), np.nextafter(total, towards), total)
    return odd.astype(np.float32)


def _row(x: Array, format: str, matrix: Unpacked, scaled: Array) -> Array:
    """Return the products of one row with every row of the matrix, float32 [rows]; ``scaled`` are codes times steps."""
    is_of_rows = not PACKED_FORMATS[format].scales.columns
    total = np.zeros(len(scaled), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for block, numbers in enumerate(x.reshape(-1, BLOCK)):
            codes, scale = round_block(numbers)
            sums = (scaled[:, block] @ codes).astype(np.float32)
            if not is_of_rows:
                sums = sums * matrix.factors[:, block]
            total = fused_multiply_add(sums, np.full_like(total, scale), total)
            if matrix.minimums is not None:
                shift = scale * np.float32(codes.sum())
                total = fused_multiply_add(matrix.minimums[:, block], np.full_like(total, shift), total)
        return total * matrix.factors[:, 0] if is_of_rows else total
