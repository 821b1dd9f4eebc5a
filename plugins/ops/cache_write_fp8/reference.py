"""NumPy reference of ``CacheWriteFp8``, one position at a time, and of the codes in a cache."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...number_types import E4M3, to_e4m3

Array = NDArray[Any]


def cache_codes(x: Array, scale: float) -> Array:
    """Return the E4M3 codes of ``x / scale`` in float32: nearest, ties to even, saturating; NaN stays NaN."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        wide = x.astype(np.float32) / np.float32(scale)
    return to_e4m3(wide).view(E4M3.dtype)


def cache_write_fp8(
    k_cache: Array, v_cache: Array, k: Array, v: Array, start: Array, k_scale: Array, v_scale: Array
) -> tuple[Array, Array]:
    """Return the outputs in spec order for inputs in spec order. Caches are copied, not written in place."""
    k_out, v_out = k_cache.copy(), v_cache.copy()
    batch, _, length, _ = k_cache.shape
    for b in range(batch):
        for s in range(k.shape[2]):
            position = int(start[b]) + s
            if 0 <= position < length:
                k_out[b, :, position] = cache_codes(k[b, :, s], float(k_scale))
                v_out[b, :, position] = cache_codes(v[b, :, s], float(v_scale))
    return k_out, v_out
