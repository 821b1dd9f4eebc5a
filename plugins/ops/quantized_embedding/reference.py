"""NumPy reference of ``QuantizedEmbedding``, bit for bit: dequantize the whole matrix, then select rows.

Written for clarity; too slow for a real vocabulary.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from ..quantized_linear.packed_weights import unpack

Array = NDArray[Any]


def quantized_embedding(
    ids: Array, codes: Array, scales: Array, *, format: str, rows: int, columns: int
) -> tuple[Array]:
    """Return y, float32 [..., columns]."""
    matrix = unpack(format, codes, scales, rows)
    return (matrix[ids].reshape(*ids.shape, columns),)
