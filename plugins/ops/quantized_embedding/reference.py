"""The oracle of ``QuantizedEmbedding``, bit for bit: the whole matrix widened, and then its rows.

It is written to be believed, not to be run on a real vocabulary.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from ..quantized_linear.packed_weights import unpack

Array = NDArray[Any]


def quantized_embedding(
    ids: Array, codes: Array, scales: Array, *, format: str, rows: int, columns: int
) -> tuple[Array]:
    """y, float32 [..., columns]; the inputs are those of the op's spec."""
    matrix = unpack(format, codes, scales, rows)
    return (matrix[ids].reshape(*ids.shape, columns),)
