"""E4M3 codes of BF16 numbers that share a scale, looked up: there are no more than 65,536 of such numbers."""

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
    """The nearest code of a number by its 16 bits, uint8, and how far what that stands for is from it, float32."""

    codes: Array
    moved: Array


@lru_cache(maxsize=16)  # more than there are threads, each of which may be at another expert
def codes_of_bf16(scale: float) -> CodesOfBf16:
    """The table for one scale, a float32."""
    numbers = (np.arange(1 << 16, dtype=np.uint32) << _HIGH).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # of numbers that no weight has
        codes = to_e4m3(numbers / np.float32(scale))
        return CodesOfBf16(codes, from_e4m3(codes) * np.float32(scale) - numbers)


def is_bf16(values: Array) -> bool:
    """Whether every one of some float32 is a BF16 number."""
    return not np.bitwise_or.reduce(values.view(np.uint32), axis=None) & _LOW


def upper_halves(values: Array) -> Array:
    """The 16 bits of each BF16 number among float32, as indices."""
    halves: Array = np.right_shift(values.view(np.uint32), _HIGH, dtype=np.intp, casting="unsafe")
    return halves
