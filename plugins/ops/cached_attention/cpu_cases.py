"""Test cases of ``CachedAttention``'s CPU kernel: windows, sinks, soft caps, odd heads, types, trees."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...number_types import INT8
from ...op_spec import CpuCase
from .int8_caches import codes_of

_TOLERANCE = 2e-5  # exponentials differ from NumPy's in the last digits, and sums are added in another order


def cpu_cases() -> Iterator[CpuCase]:
    """Two rows of several columns, one at the start of its cache and one at the end."""
    for size, group, columns, window, softcap, has_sinks, cache_type, *saturates in (
        (64, 3, 5, 0, 0.0, False, "float32"),
        (12, 1, 1, 0, 0.0, False, "float32"),
        (80, 2, 3, 70, 5.0, True, "float32"),
        (16, 4, 40, 0, 0.0, True, "float32"),
        (64, 3, 5, 0, 0.0, False, "float16"),
        (12, 1, 2, 20, 0.0, True, "float16", "saturates"),
        (64, 3, 5, 0, 0.0, False, "int8"),
        (12, 1, 40, 20, 0.0, True, "int8"),
    ):
        rng = np.random.default_rng(size)
        new, kept = (2, 2, columns, size), (2, 2, 150, size)
        q = rng.normal(size=(2, 2 * group, columns, size))
        wide = (each.astype(np.float32) for each in (q, rng.normal(size=new), rng.normal(size=new)))
        caches = (_as_cached(rng.normal(size=kept), cache_type) for _ in range(2))
        sinks = rng.normal(size=2 * group).astype(np.float32) if has_sinks else None
        start = np.array([0, 150 - columns])
        tree = rng.random(size=(2, columns, columns)) < 0.5 if columns == 5 else None
        inputs = (*wide, *caches, start, sinks, tree)
        attributes = {"scale": 0.2, "window": window, "softcap": softcap, "scaled": int(cache_type == INT8.numpy)}
        attributes |= dict.fromkeys(saturates, 1)
        yield CpuCase(inputs, attributes, tolerance=_TOLERANCE)


def _as_cached(numbers: NDArray[Any], cache_type: str) -> NDArray[Any]:
    return codes_of(numbers) if cache_type == INT8.numpy else numbers.astype(cache_type)
