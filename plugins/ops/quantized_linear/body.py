"""``QuantizedLinear`` in standard opset-24 ops: dequantize the matrix, round the input, then multiply.

The runtime chooses the summation order in float32, so results differ from the kernel's in the last digits. The formats
are overloads of one function. Cast targets: 1 float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# codes [tiles, blocks, 512 or 256] -> codes_5 [tiles, blocks, 8, 16, 4]
_EIGHT_BITS = """
  eight_form = Constant<value_ints = [0, 0, 8, 16, 4]>()
  codes_5 = Reshape(codes, eight_form)
  middle = Constant<value_float = 128.0>()
"""
_FOUR_BITS = """
  four_form = Constant<value_ints = [0, 0, 4, 16, 4]>()
  both = Reshape(codes, four_form)
  four = Constant<value_ints = [4]>()
  shift = CastLike(four, codes)
  high = BitShift<direction = "RIGHT">(both, shift)
  mask_64 = Constant<value_ints = [15]>()
  mask = CastLike(mask_64, codes)
  low = BitwiseAnd(both, mask)
  codes_5 = Concat<axis = 2>(low, high)
"""
_MIDDLE = {
    "int8": _EIGHT_BITS,
    "q8_0": _EIGHT_BITS,
    "q4_0": f"{_FOUR_BITS}  middle = Constant<value_float = 8.0>()\n",
    "q4_1": f"{_FOUR_BITS}  middle = Constant<value_float = 0.0>()\n",
}

# -> whole [padded rows, blocks, 32], and scales_3 [padded rows, blocks or 1, 1]
_WHOLE = """
  turned = Transpose<perm = [0, 3, 1, 2, 4]>(codes_5)
  blocks_of_codes = Shape<start = 1, end = 2>(codes)
  inferred = Constant<value_ints = [-1]>()
  block = Constant<value_ints = [32]>()
  by_block = Concat<axis = 0>(inferred, blocks_of_codes, block)
  codes_3 = Reshape(turned, by_block)
  codes_32 = Cast<to = 1>(codes_3)
  whole = Sub(codes_32, middle)
  scales_32 = Cast<to = 1>(scales)
  blocks_of_scales = Shape<start = 1, end = 2>(scales)
  one = Constant<value_ints = [1]>()
  scales_form = Concat<axis = 0>(inferred, blocks_of_scales, one)
"""
_SCALED = """
  scales_turned = Transpose<perm = [0, 2, 1]>(scales_32)
  scales_3 = Reshape(scales_turned, scales_form)
  matrix_3 = Mul(whole, scales_3)
"""
_SCALED_AND_MOVED = """
  factors, least_values = Split<axis = 2, num_outputs = 2>(scales_32)
  factors_turned = Transpose<perm = [0, 2, 1]>(factors)
  scales_3 = Reshape(factors_turned, scales_form)
  least_turned = Transpose<perm = [0, 2, 1]>(least_values)
  least_3 = Reshape(least_turned, scales_form)
  scaled = Mul(whole, scales_3)
  matrix_3 = Add(scaled, least_3)
"""
_ROWS = """
  rows = Constant<value_int: int = @rows>()
"""
_MATRIX = """
  columns_inferred = Constant<value_ints = [0, -1]>()
  filled_up = Reshape(matrix_3, columns_inferred)
  zero = Constant<value_ints = [0]>()
  rows_1 = Reshape(rows, one)
  matrix = Slice(filled_up, zero, rows_1, zero)
"""
ROUNDED = """
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


def unpacking(format: str, rows: str = _ROWS) -> str:
    """Return the nodes that compute ``matrix``, float32 [rows, K], from ``codes``, ``scales``; ``rows`` makes it."""
    return rows + _MIDDLE[format] + _WHOLE + (_SCALED_AND_MOVED if format == "q4_1" else _SCALED) + _MATRIX


def body(attributes: Mapping[str, Any], present: frozenset[str]) -> str:
    """Return the ONNX model-local function for this format, which is its overload."""
    del present
    format = attributes["format"]
    return f"""<opset_import: ["" : 24], domain: "peagle", overload: "{format}">
QuantizedLinear <rows> (x, codes, scales) => (y) {{{unpacking(format)}{ROUNDED}
  turned_matrix = Transpose<perm = [1, 0]>(matrix)
  y = MatMul(x_rounded, turned_matrix)
}}"""
