"""Matrices of float32 in the form that CPU kernels read in place.

A matrix [N, K] is cut into tiles of 16 rows, the last filled up with zeros. In a tile the 16 numbers of a column lie
one behind the other, column after column: ``float32 [tiles, K, 16]``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..quantized_linear.packed_weights import TILE, tiled

Array = NDArray[Any]


def packed_shape(rows: int, columns: int) -> tuple[int, int, int]:
    """The shape of a packed matrix [rows, columns]."""
    return -(-rows // TILE), columns, TILE


def pack_matrix(matrix: Array) -> Array:
    """A matrix [N, K], packed as float32 [tiles, K, 16]."""
    return tiled(matrix.astype(np.float32, copy=False))


def unpack_matrix(packed: Array, rows: int) -> Array:
    """The matrix float32 [rows, K] that was packed."""
    tiles, columns, _ = packed.shape
    return packed.swapaxes(1, 2).reshape(tiles * TILE, columns)[:rows]
