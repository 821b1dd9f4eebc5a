"""The speed of reading memory."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

_READ = 256 * 2**20  # bytes: more than any cache holds


def bandwidth(threads: int) -> float:
    """Return the best bytes per second that ``threads`` threads read when each sums part of an array."""
    array = np.ones(_READ // 8, np.int64)
    parts = np.array_split(array, threads)
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(5):
            began = time.perf_counter()
            list(pool.map(np.sum, parts))
            best = min(best, time.perf_counter() - began)
    return array.nbytes / best
