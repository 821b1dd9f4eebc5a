"""A histogram of magnitudes with the same buckets for every tensor, so that it is independent of order.

A bucket covers the values that share the exponent and the first nine mantissa bits of a float32: 0.1% to 0.2% wide at
any magnitude. No range must be known in advance, and the sums are exact because counts are integers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

Array = np.ndarray[Any, Any]

_SHIFT = 23 - 9
_LOWEST = (127 - 40) << 9  # 2**-40: smaller values count as zero


class Histogram:
    """Counts of |x|; grows with the observed range, by 4 kB per power of two."""

    def __init__(self) -> None:
        self.zeros = 0
        self._first = 0
        self._counts: Array = np.zeros(0, np.int64)

    def add(self, values: Tensor) -> None:
        """Count finite ``values`` of any shape and floating type."""
        import torch

        codes = (values.detach().reshape(-1).float().view(torch.int32) & 0x7FFFFFFF) >> _SHIFT
        codes = codes.clamp_(min=_LOWEST - 1) - (_LOWEST - 1)
        counts = torch.bincount(codes).cpu().numpy()
        self.zeros += int(counts[0])
        nonzero = np.flatnonzero(counts[1:])
        if len(nonzero):
            first, last = int(nonzero[0]), int(nonzero[-1])
            self._grow(_LOWEST + first, _LOWEST + last + 1)
            at = _LOWEST + first - self._first
            self._counts[at : at + last + 1 - first] += counts[first + 1 : last + 2]

    @property
    def total(self) -> int:
        """The number of counted values."""
        return self.zeros + int(self._counts.sum())

    def buckets(self) -> tuple[Array, Array, Array]:
        """Lower and upper edges (float64) and counts of the non-empty buckets, ascending; without zeros."""
        codes = np.flatnonzero(self._counts)
        lower, upper = (_edges(self._first + codes + step) for step in (0, 1))
        return lower, upper, self._counts[codes]

    def _grow(self, begin: int, end: int) -> None:
        if len(self._counts):
            begin, end = min(begin, self._first), max(end, self._first + len(self._counts))
            if (begin, end) == (self._first, self._first + len(self._counts)):
                return
        counts = np.zeros(end - begin, np.int64)
        at = self._first - begin
        counts[at : at + len(self._counts)] = self._counts
        self._first, self._counts = begin, counts


def _edges(codes: Array) -> Array:
    bits = codes.astype(np.int64) << _SHIFT
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)
