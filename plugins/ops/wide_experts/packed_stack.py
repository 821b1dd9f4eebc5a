"""Stacks of float32 expert matrices packed for the CPU kernel: each matrix by itself, as ``WideLinear``'s are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..wide_linear.packed_matrix import Array, pack_matrix, packed_shape, unpack_matrix


def packed_stack_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a packed stack [E, rows, columns]."""
    experts, rows, columns = shape
    return experts, *packed_shape(rows, columns)


def pack_stack(stack: Array) -> Array:
    """Pack matrices [E, rows, columns] as float32 [E, tiles, columns, 16]."""
    return np.stack([pack_matrix(matrix) for matrix in stack])


def unpack_stack(packed: Array, rows: int) -> Array:
    """Return the matrices float32 [E, rows, columns] that were packed."""
    return np.stack([unpack_matrix(matrix, rows) for matrix in packed])
