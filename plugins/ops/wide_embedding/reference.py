"""The oracle of ``WideEmbedding``: the whole matrix unpacked, and then its rows.

It is written to be believed, not to be run on a real vocabulary.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from ..wide_linear.packed_matrix import unpack_matrix

Array = NDArray[Any]


def wide_embedding(ids: Array, matrix: Array, *, rows: int) -> tuple[Array]:
    """y, float32 [..., K]; the inputs are those of the op's spec."""
    whole = unpack_matrix(matrix, rows)
    return (whole[ids].reshape(*ids.shape, whole.shape[1]),)
