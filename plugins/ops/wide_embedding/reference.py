"""NumPy reference of ``WideEmbedding``: unpack the whole matrix, then select rows.

Written for clarity; too slow for a real vocabulary.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from ..wide_linear.packed_matrix import unpack_matrix

Array = NDArray[Any]


def wide_embedding(ids: Array, matrix: Array, *, rows: int) -> tuple[Array]:
    """Return y, float32 [..., K]."""
    unpacked = unpack_matrix(matrix, rows)
    return (unpacked[ids].reshape(*ids.shape, unpacked.shape[1]),)
