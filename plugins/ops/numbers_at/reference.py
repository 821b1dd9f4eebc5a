"""NumPy reference of ``NumbersAt``, one row at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def numbers_at(numbers: Array, start: Array, window_len: Array, draft_len: Array, *, columns: int) -> tuple[Array]:
    """Return uniform float32 [B, columns]; the inputs are in spec order."""
    batch, length = numbers.shape
    uniform = np.zeros((batch, columns), np.float32)
    for b in range(batch):
        window = int(window_len[b])
        if window <= 0:
            continue
        drafts = max(min(int(draft_len[b]), columns - 1, window - 1), 0)
        first = max(int(start[b]), 0) + window - drafts
        for j in range(columns):
            if first + j < length:
                uniform[b, j] = numbers[b, first + j]
    return (uniform,)
