"""Lookup tables from BF16 values to E4M3 codes for one scale: there are only 65,536 BF16 values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ....graphs.targets.checkpoint_pieces import Array
from ....plugins.number_types import from_e4m3, to_e4m3

_LOW = np.uint32(0xFFFF)
_HIGH = np.uint32(16)


@dataclass(frozen=True)
class CodesOfBf16:
    """The nearest code, uint8, and its error, float32, of each 16-bit pattern."""

    codes: Array
    moved: Array


@lru_cache(maxsize=16)  # more than there are threads, each of which may process another expert
def codes_of_bf16(scale: float) -> CodesOfBf16:
    """Return the table for one scale, a float32."""
    numbers = (np.arange(1 << 16, dtype=np.uint32) << _HIGH).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # for values that no weight has
        codes = to_e4m3(numbers / np.float32(scale))
        return CodesOfBf16(codes, from_e4m3(codes) * np.float32(scale) - numbers)


def is_bf16(values: Array) -> bool:
    """Return True if all float32 values are exactly representable in BF16."""
    return not np.bitwise_or.reduce(values.view(np.uint32), axis=None) & _LOW


def upper_halves(values: Array) -> Array:
    """Return the 16 bits of each BF16 value among float32, as indices."""
    halves: Array = np.right_shift(values.view(np.uint32), _HIGH, dtype=np.intp, casting="unsafe")
    return halves
