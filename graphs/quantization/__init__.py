"""Quantized types in a semantic graph: weights stored as codes with scales, and inputs that are rounded to codes.

Everything is explicit, in QuantizeLinear and DequantizeLinear, before a lowering sees the graph. ``products_of`` reads
back from the lowered graph what became of it.
"""

from __future__ import annotations

from .caches import quantize_caches, round_caches
from .products import GraphProduct, products_of
from .rewrite import quantize
from .weight import Codes, Quantization, QuantizedWeight, Rounding, SharedInput, WeightStream

__all__ = [
    "Codes",
    "GraphProduct",
    "Quantization",
    "QuantizedWeight",
    "Rounding",
    "SharedInput",
    "WeightStream",
    "products_of",
    "quantize",
    "quantize_caches",
    "round_caches",
]
