"""The oracle of ``CachedAttention``: one query of one head at a time, in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cache_write_fp8.reference import cache_codes

Array = NDArray[Any]


def cached_attention(
    q: Array,
    k: Array,
    v: Array,
    k_cache: Array,
    v_cache: Array,
    start: Array,
    sinks: Array | None = None,
    *,
    scale: float,
    window: int,
    softcap: float,
    k_scale: float = 0.0,
    v_scale: float = 0.0,
) -> tuple[Array, Array, Array]:
    """The outputs of the op's spec, in its order; the inputs likewise. Caches are copied, not written in place."""
    batch, heads, length, size = q.shape
    group = heads // k.shape[1]
    y = np.empty((batch, length, heads, size), q.dtype)
    k_out, v_out = k_cache.copy(), v_cache.copy()
    for b in range(batch):
        begin = int(start[b])
        if not 0 <= begin <= k_cache.shape[2] - length:
            raise ValueError(f"row {b}: {length} positions from {begin} leave a cache of {k_cache.shape[2]}")
        k_out[b, :, begin : begin + length] = cache_codes(k[b], k_scale) if k_scale else k[b]
        v_out[b, :, begin : begin + length] = cache_codes(v[b], v_scale) if v_scale else v[b]
        for h in range(heads):
            for s in range(length):
                last = begin + s
                first = max(0, last + 1 - window) if window else 0
                keys = _numbers(k_out[b, h // group, first : last + 1], k_scale, q)
                values = _numbers(v_out[b, h // group, first : last + 1], v_scale, q)
                scores = keys @ q[b, h, s].astype(np.float32) * np.float32(scale)
                if softcap:
                    scores = np.float32(softcap) * np.tanh(scores / np.float32(softcap))
                if sinks is not None:
                    scores = np.append(scores, np.float32(sinks[h]))
                weights = np.exp(scores - scores.max())
                weights /= weights.sum()
                y[b, s, h] = (weights[: len(values)] @ values).astype(q.dtype)
    return y, k_out, v_out


def _numbers(cached: Array, scale: float, like: Array) -> Array:
    """What lies in a cache, float32; codes stand for numbers of the type of ``like``."""
    wide = cached.astype(np.float32)
    return (wide * np.float32(scale)).astype(like.dtype).astype(np.float32) if scale else wide
