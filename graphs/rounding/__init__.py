"""Narrow types in a semantic graph: weights that are stored as codes with scales, and inputs that are rounded to codes.

Everything is explicit, in QuantizeLinear and DequantizeLinear, before a lowering sees the graph. ``matmuls`` reads back
from the lowered graph what became of it.
"""

from __future__ import annotations

from .caches import narrow_caches, round_caches
from .matmuls import Matmul, matmuls
from .rewrite import narrow
from .weight import Codes, Narrowing, NarrowWeight, Rounding, SharedInput, Stream

__all__ = [
    "Codes",
    "Matmul",
    "NarrowWeight",
    "Narrowing",
    "Rounding",
    "SharedInput",
    "Stream",
    "matmuls",
    "narrow",
    "narrow_caches",
    "round_caches",
]
