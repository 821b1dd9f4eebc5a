"""``QuantizedEmbedding`` in standard opset-24 ops: the whole matrix is unpacked and widened, then looked up in.

A runtime that folds constants does so once, and keeps the wide matrix; one that does not does it at every call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..quantized_linear.body import unpacking


def body(attributes: Mapping[str, Any], present: frozenset[str]) -> str:
    """The text of the ONNX model-local function for this format, which is its overload."""
    del present
    format = attributes["format"]
    return f"""<opset_import: ["" : 24], domain: "peagle", overload: "{format}">
QuantizedEmbedding <rows> (ids, codes, scales) => (y) {{{unpacking(format)}
  y = Gather(matrix, ids)
}}"""
