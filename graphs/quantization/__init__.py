"""Quantization in a semantic graph: weights stored as codes with scales, and inputs quantized to codes.

Everything is explicit, as QuantizeLinear and DequantizeLinear, before a lowering processes the graph. ``products_of``
reads the result back from the lowered graph.
"""

from __future__ import annotations

from .expert_stacks import split_experts
from .graph_products import GraphProduct, products_of
from .kv_caches import lower_cache_precision, quantize_caches, round_caches
from .mxfp4_experts import keep_all
from .packed_nodes import packed_runs
from .quantized_weight import Codes, Quantization, QuantizedWeight, Rounding, SharedInput, WeightStream
from .rewrite import quantize
from .wide_nodes import pack_wide, packed_tiles

__all__ = [
    "Codes",
    "GraphProduct",
    "Quantization",
    "QuantizedWeight",
    "Rounding",
    "SharedInput",
    "WeightStream",
    "keep_all",
    "lower_cache_precision",
    "pack_wide",
    "packed_runs",
    "packed_tiles",
    "products_of",
    "quantize",
    "quantize_caches",
    "round_caches",
    "split_experts",
]
