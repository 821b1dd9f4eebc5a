"""``QuantizedEmbedding`` in standard opset-24 ops: dequantize the whole matrix, then look rows up.

A runtime that folds constants does this once and keeps the dequantized matrix; others repeat it on every call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..quantized_linear.unpacking_nodes import unpacking


def body(attributes: Mapping[str, Any], present: frozenset[str]) -> str:
    """Return the ONNX model-local function for this format, which is its overload."""
    del present
    format = attributes["format"]
    return f"""<opset_import: ["" : 24], domain: "peagle", overload: "{format}">
QuantizedEmbedding <rows> (ids, codes, scales) => (y) {{{unpacking(format)}
  y = Gather(matrix, ids)
}}"""
