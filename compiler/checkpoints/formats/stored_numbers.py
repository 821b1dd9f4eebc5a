"""Convert stored values to float32. Types of 8 bits or fewer use a lookup table."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ....plugins.errors import BuildError
from ....plugins.number_types import FP4, from_e4m3, from_e8m0
from ..safetensors import TensorEntry

Array = np.ndarray[Any, Any]


def as_numbers(dtype: str, raw: Array) -> Array:
    """Return floats as float32; integers and booleans unchanged."""
    if dtype == "BF16":
        return np.left_shift(raw, 16, dtype=np.uint32).view(np.float32)
    if dtype == "F16":
        return raw.astype(np.float32)
    if dtype == "F8_E4M3":
        return from_e4m3(raw)
    if dtype == "F8_E8M0":
        return from_e8m0(raw)
    return raw


def fp4_pairs(raw: Array) -> Array:
    """Unpack two values per byte, low half first: the last axis doubles."""
    pairs: Array = _fp4_pairs()[raw]
    return pairs.view(np.float32)


def check_finite(name: str, entry: TensorEntry, values: Array) -> None:
    """Raise ``BuildError`` with the number of values that are not finite."""
    if values.dtype != np.float32 or np.isfinite(values).all():
        return
    raise _not_finite(name, entry, int(np.isnan(values).sum()), int(np.isinf(values).sum()), values.size)


def check_codes(name: str, entry: TensorEntry, codes: Array) -> None:
    """Raise ``BuildError`` with the number of NaN codes; E4M3 has no code for Inf."""
    if nan := int(np.count_nonzero((codes & 0x7F) == 0x7F)):
        raise _not_finite(name, entry, nan, 0, codes.size)


def check_scales(name: str, entry: TensorEntry, scales: Array) -> None:
    """Raise ``BuildError`` unless every scale is a positive number."""
    bad = int((~(np.isfinite(scales) & (scales > 0))).sum())
    if bad:
        raise BuildError(
            f"{entry.file}: {bad} of the {scales.size} scales of {name} are zero, negative, NaN or Inf",
            why="scales must be positive numbers",
            fix="download the file again; if the error persists, the checkpoint itself is broken",
        )


def _not_finite(name: str, entry: TensorEntry, nan: int, inf: int, size: int) -> BuildError:
    return BuildError(
        f"{entry.file}: {name} has {nan} NaN and {inf} Inf among {size} values",
        why="weights that are not finite make every logit NaN",
        fix="download the file again; if the error persists, the checkpoint itself is broken",
    )


@cache
def _fp4_pairs() -> Array:
    """Return the pair of float32 values of each byte, as one item of 8 bytes."""
    byte = np.arange(256)
    table = np.array(FP4, np.float32)
    return np.stack([table[byte & 15], table[byte >> 4]], axis=1).view(np.uint64)[:, 0]
