"""NumPy reference of ``CachedAttention``: one query of one head at a time, in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cache_write_fp8.reference import cache_codes
from .int8_caches import codes_of, numbers_of

Array = NDArray[Any]


def cached_attention(
    q: Array,
    k: Array,
    v: Array,
    k_cache: Array,
    v_cache: Array,
    start: Array,
    sinks: Array | None = None,
    ancestors: Array | None = None,
    *,
    scale: float,
    window: int,
    softcap: float,
    k_scale: float = 0.0,
    v_scale: float = 0.0,
    scaled: int = 0,
    saturates: int = 0,
) -> tuple[Array, Array, Array]:
    """Return the outputs in spec order for inputs in spec order. Caches are copied, not written in place."""
    if saturates:
        k, v = _clamped(k), _clamped(v)
    if bool(scaled) != (k_cache.dtype == np.int8):
        raise ValueError(f"a cache of {k_cache.dtype} does not match scaled = {scaled}")
    batch, heads, length, size = q.shape
    group = heads // k.shape[1]
    y = np.empty((batch, length, heads, size), q.dtype)
    k_out, v_out = k_cache.copy(), v_cache.copy()
    for b in range(batch):
        begin = int(start[b])
        if not 0 <= begin <= k_cache.shape[2] - length:
            raise ValueError(f"row {b}: {length} positions from {begin} do not fit in a cache of {k_cache.shape[2]}")
        k_out[b, :, begin : begin + length] = _as_cached(k[b], k_scale, k_out.dtype)
        v_out[b, :, begin : begin + length] = _as_cached(v[b], v_scale, v_out.dtype)
        for h in range(heads):
            for s in range(length):
                seen = [*range(begin), *(begin + t for t in range(s + 1) if _sees(ancestors, b, s, t))]
                seen = seen[-window:] if window else seen
                keys = _numbers(k_out[b, h // group, seen], k_scale, q)
                values = _numbers(v_out[b, h // group, seen], v_scale, q)
                scores = keys @ q[b, h, s].astype(np.float32) * np.float32(scale)
                if softcap:
                    scores = np.float32(softcap) * np.tanh(scores / np.float32(softcap))
                if sinks is not None:
                    scores = np.append(scores, np.float32(sinks[h]))
                weights = np.exp(scores - scores.max())
                weights /= weights.sum()
                y[b, s, h] = (weights[: len(values)] @ values).astype(q.dtype)
    return y, k_out, v_out


def _sees(ancestors: Array | None, b: int, s: int, t: int) -> bool:
    """Return True if column s sees column t, with t <= s."""
    return s == t or ancestors is None or bool(ancestors[b, s, t])


def _clamped(new: Array) -> Array:
    """Return new keys or values with finite ones in the range of float16."""
    most = np.finfo(np.float16).max
    return np.where(np.isfinite(new), np.clip(new, -most, most), new)


def _as_cached(new: Array, scale: float, dtype: np.dtype[Any]) -> Array:
    """Return new keys or values as a cache of this type stores them."""
    if scale:
        return cache_codes(new, scale)
    return codes_of(new) if dtype == np.int8 else new.astype(dtype)


def _numbers(cached: Array, scale: float, like: Array) -> Array:
    """Return the contents of a cache, float32; codes stand for numbers of the type of ``like``."""
    if cached.dtype == np.int8:
        return numbers_of(cached).astype(like.dtype).astype(np.float32)
    wide = cached.astype(np.float32)
    return (wide * np.float32(scale)).astype(like.dtype).astype(np.float32) if scale else wide
