"""Float32 matrices packed for the CPU kernels to read in place.

A matrix [N, K] is divided into tiles of 16 rows, the last padded with zeros. A tile stores its 16 numbers of a column
consecutively, column after column: ``float32 [tiles, K, 16]``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..quantized_linear.packed_weights import TILE, tiled

Array = NDArray[Any]


def packed_shape(rows: int, columns: int) -> tuple[int, int, int]:
    """Return the shape of a packed matrix [rows, columns]."""
    return -(-rows // TILE), columns, TILE


def pack_matrix(matrix: Array) -> Array:
    """Pack a matrix [N, K] as float32 [tiles, K, 16]."""
    return tiled(matrix.astype(np.float32, copy=False))


def unpack_matrix(packed: Array, rows: int) -> Array:
    """Return the matrix float32 [rows, K] that was packed."""
    tiles, columns, _ = packed.shape
    return packed.swapaxes(1, 2).reshape(tiles * TILE, columns)[:rows]
