"""NumPy reference of ``WideLinear``, bit for bit: one row and one column at a time, in the kernels' order."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..quantized_linear.reference import fused_multiply_add
from .packed_matrix import unpack_matrix

Array = NDArray[Any]


def wide_linear(x: Array, matrix: Array, *, rows: int) -> tuple[Array]:
    """Return y, float32 [..., rows]."""
    unpacked = unpack_matrix(matrix, rows)
    y = [_row(row, unpacked) for row in x.reshape(-1, x.shape[-1])]
    return (np.array(y, np.float32).reshape(*x.shape[:-1], rows),)


def _row(x: Array, matrix: Array) -> Array:
    """Return the products of one row with every row of the matrix, float32 [rows]."""
    total = np.zeros(len(matrix), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for number, column in zip(x, matrix.T, strict=True):
            total = fused_multiply_add(column, np.full_like(total, number), total)
    return total
