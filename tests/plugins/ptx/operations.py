"""Instructions that only compute: one record for every opcode with all its modifiers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# How the bits of a register are seen. Half numbers are patterns; ``pred`` is a bool.
DTYPES: Mapping[str, Any] = {
    **{f"{kind}{bits}": np.dtype(f"u{bits // 8}") for kind in ("b", "u") for bits in (8, 16, 32, 64)},
    **{f"s{bits}": np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.uint16),
    "bf16": np.dtype(np.uint16),
    "f16x2": np.dtype(np.uint32),
    "bf16x2": np.dtype(np.uint32),
    "pred": np.dtype(np.bool_),
}

# What ``setp`` compares by; what atomics and reductions combine by.
COMPARE: Mapping[str, np.ufunc] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
COMBINE: Mapping[str, np.ufunc] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


@dataclass(frozen=True)
class Operation:
    """Types of the operands and of the result; ``compute`` maps arrays [lanes] of the former to one of the latter."""

    sources: tuple[str, ...]
    result: str
    compute: Callable[..., Array]


Table = dict[str, Operation]
