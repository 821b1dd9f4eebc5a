"""Keys and values as int8: per position and head, a code for every number, and two bytes for the scale m * 2^e.

m is 64 to 127, and e any byte: the least such scale with which the largest number has a code of at most 127. A number
is exactly code * m * 2^e. m is 0 if all numbers are below ``SMALLEST``, and ``FLAWED`` if one is not finite.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graph_contract import SCALE_BYTES

Array = NDArray[Any]

MAX = 127  # largest code, and largest m
SMALLEST = 2.0**-90
FLAWED = -128


def codes_of(x: Array) -> Array:
    """Quantize numbers [..., D] to int8 [..., D + 2], each rounded to the nearest code, ties to even."""
    x = x.astype(np.float32)
    is_flawed = ~np.isfinite(x).all(axis=-1, keepdims=True)
    x = np.where(is_flawed, np.float32(0), x)
    largest = np.abs(x).max(axis=-1, keepdims=True)
    is_none = largest < np.float32(SMALLEST)
    largest = np.where(is_none, np.float32(1), largest)
    mantissa, exponent = np.frexp(largest / np.float32(MAX * MAX))
    exponent = exponent - (mantissa == 0.5)  # the least power of two that is not smaller
    power = np.ldexp(np.float32(1), exponent)
    m = np.minimum(np.ceil(largest / (np.float32(MAX) * power)), np.float32(MAX))
    codes = np.where(is_none, 0, np.rint(x / (m * power)))
    m = np.where(is_flawed, FLAWED, np.where(is_none, 0, m))
    return np.concatenate([codes, m, np.where(is_none, 0, exponent)], axis=-1).astype(np.int8)


def numbers_of(codes: Array) -> Array:
    """Dequantize such codes [..., D + 2] to float32 [..., D]."""
    m, e = (codes[..., -at, None].astype(np.float32) for at in (2, 1))
    scale = np.where(m < 0, np.float32(np.nan), m) * np.exp2(e)
    numbers: Array = codes[..., :-SCALE_BYTES] * scale
    return numbers
