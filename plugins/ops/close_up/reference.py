"""NumPy reference of ``CloseUp``, one entry at a time."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]


def close_up(entries: Array, start: Array, path: Array) -> tuple[Array]:
    """Return entries int8 [N, P, H, T, W]; the inputs are in spec order."""
    moved, length = entries.copy(), entries.shape[3]
    for b in range(path.shape[0]):
        for i, column in enumerate(path[b]):
            if column < 0:
                break
            source, target = int(start[b]) + int(column), int(start[b]) + int(path[b, 0]) + i
            if 0 <= source < length and 0 <= target < length:
                moved[:, b, :, target] = moved[:, b, :, source]
    return (moved,)
