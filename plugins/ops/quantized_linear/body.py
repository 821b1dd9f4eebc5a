"""``QuantizedLinear`` in standard opset-24 ops: dequantize the matrix, round the input, then multiply.

The runtime chooses the summation order in float32, so results differ from the kernel's in the last digits. The formats
are overloads of one function.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .unpacking_nodes import unpacking

_ROUNDED = """
  lead = Shape<start = 0, end = -1>(x)
  x_form = Concat<axis = 0>(lead, blocks_of_codes, block)
  x_blocks = Reshape(x, x_form)
  magnitudes = Abs(x_blocks)
  largest = ReduceMax<keepdims = 1>(magnitudes, inferred)
  most = Constant<value_float = 127.0>()
  none = Constant<value_float = 0.0>()
  negligible = Constant<value_float = 7.888609052210118e-31>()
  is_negligible = Less(largest, negligible)
  quotient = Div(most, largest)
  inverse = Where(is_negligible, none, quotient)
  multiples = Mul(x_blocks, inverse)
  x_codes = Round(multiples)
  step = Div(largest, most)
  nearest = Mul(x_codes, step)
  x_shape = Shape(x)
  x_rounded = Reshape(nearest, x_shape)
"""


def body(attributes: Mapping[str, Any], present: frozenset[str]) -> str:
    """Return the ONNX model-local function for this format, which is its overload."""
    del present
    format = attributes["format"]
    return f"""<opset_import: ["" : 24], domain: "peagle", overload: "{format}">
QuantizedLinear <rows> (x, codes, scales) => (y) {{{unpacking(format)}{_ROUNDED}
  turned_matrix = Transpose<perm = [1, 0]>(matrix)
  y = MatMul(x_rounded, turned_matrix)
}}"""
