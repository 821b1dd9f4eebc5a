"""Stacks of expert matrices packed for the CPU kernel: each matrix by itself, as ``QuantizedLinear``'s are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..quantized_linear.packed_weights import Array, code_shape, scale_shape, unpack


def stack_code_shape(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of the packed codes of a stack [E, rows, columns]."""
    experts, rows, columns = shape
    return experts, *code_shape(name, rows, columns)


def stack_scale_shape(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of its packed scales."""
    experts, rows, columns = shape
    return experts, *scale_shape(name, rows, columns)


def unpack_stack(name: str, codes: Array, scales: Array, rows: int) -> Array:
    """Return the matrices, float32 [E, rows, columns]."""
    return np.stack([unpack(name, *each, rows) for each in zip(codes, scales, strict=True)])
