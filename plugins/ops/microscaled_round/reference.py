"""NumPy reference of ``MicroscaledRound``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...number_types import MX_BLOCK, nearest_e4m3, powers_of_two

Array = NDArray[Any]


def microscaled_round(x: Array) -> tuple[Array]:
    """Return y, with x's shape and dtype."""
    blocks = x.astype(np.float32).reshape(*x.shape[:-1], -1, MX_BLOCK)
    scale = powers_of_two(np.abs(blocks).max(axis=-1, keepdims=True))
    with np.errstate(over="ignore"):  # the largest floats may round up to infinity
        rounded = nearest_e4m3(blocks / scale) * scale
    return (rounded.reshape(x.shape).astype(x.dtype),)
