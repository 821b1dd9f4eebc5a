"""``Mxfp4GateUp`` in standard opset-24 ops: choice by choice, dequantizing the one expert that it needs.

A choice is a pair of a token and one of its experts. The runtime chooses the summation order in float32, so results
differ from the kernel's in the last digits; an expert that does not exist is an error of the runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...number_types import FP4

# The product of each row of `{given}` with the matrix of its expert, plus its bias, float32. Cast targets: 1 float32,
# 6 int32. Bytes come as int8.
_PRODUCT = """
  inferred_1 = Constant<value_ints = [-1]>()
  expert_of_choices = Reshape(experts, inferred_1)
  products = Scan<num_scan_inputs = 2, body = of_choice (row, expert) => (product) {{
    low_half = Constant<value: tensor = int32 {{15}}>()
    byte = Constant<value: tensor = int32 {{255}}>()
    sixteen = Constant<value: tensor = int32 {{16}}>()
    last = Constant<value_int = -1>()
    last_axis = Constant<value_ints = [-1]>()
    numbers = Constant<value_floats = [{numbers}]>()
    two = Constant<value_float = 2.0>()
    bias_of_exponents = Constant<value_float = 127.0>()
    its_codes = Gather(codes, expert)
    wide_codes = Cast<to = 6>(its_codes)
    pairs = BitwiseAnd(wide_codes, byte)
    low = BitwiseAnd(pairs, low_half)
    high = Div(pairs, sixteen)
    low_column = Unsqueeze(low, last_axis)
    high_column = Unsqueeze(high, last_axis)
    columns = Concat<axis = -1>(low_column, high_column)
    unscaled = Gather(numbers, columns)
    its_exponents = Gather(exponents, expert)
    wide_exponents = Cast<to = 6>(its_exponents)
    biased = BitwiseAnd(wide_exponents, byte)
    biased_32 = Cast<to = 1>(biased)
    exponent = Sub(biased_32, bias_of_exponents)
    powers = Pow(two, exponent)
    two_axes = Constant<value_ints = [-1, -2]>()
    scales = Unsqueeze(powers, two_axes)
    scaled = Mul(unscaled, scales)
    width = Shape(row)
    matrix_form = Concat<axis = 0>(last_axis, width)
    matrix = Reshape(scaled, matrix_form)
    its_bias = Gather(bias, expert)
    wide_bias = Cast<to = 1>(its_bias)
    unshifted = MatMul(matrix, row)
    product = Add(unshifted, wide_bias)
  }}>({given}, expert_of_choices)
"""

_BODY = """<opset_import: ["" : 24], domain: "peagle">
Mxfp4GateUp (x, experts, codes, exponents, bias, alpha, beta, limit) => (inner) {{
  middle_axis = Constant<value_ints = [1]>()
  form = Shape(experts)
  per_token = Shape<start = 1, end = 2>(experts)
  x_columns = Shape<start = 1, end = 2>(x)
  tokens = Shape<start = 0, end = 1>(x)
  repeated_form = Concat<axis = 0>(tokens, per_token, x_columns)
  x_32 = Cast<to = 1>(x)
  x_3 = Unsqueeze(x_32, middle_axis)
  x_repeated = Expand(x_3, repeated_form)
  all = Constant<value_ints = [-1]>()
  flat_form = Concat<axis = 0>(all, x_columns)
  x_of_choices = Reshape(x_repeated, flat_form)
{product}
  ends = Constant<value_ints = [9223372036854775807]>()
  every_second = Constant<value_ints = [2]>()
  even = Constant<value_ints = [0]>()
  odd = Constant<value_ints = [1]>()
  gate = Slice(products, even, ends, inferred_1, every_second)
  up = Slice(products, odd, ends, inferred_1, every_second)
  lowest = Neg(limit)
  gate_in = Min(gate, limit)
  up_in = Clip(up, lowest, limit)
  steep = Mul(gate_in, alpha)
  open = Sigmoid(steep)
  swish = Mul(gate_in, open)
  lifted = Add(up_in, beta)
  gated = Mul(lifted, swish)
  inner_form = Concat<axis = 0>(form, all)
  inner = Reshape(gated, inner_form)
}}"""


def product(operand: str) -> str:
    """Return the nodes from float32 rows ``operand``, one of each choice, to ``products``.

    They read experts, codes, exponents and bias, and make inferred_1 and expert_of_choices.
    """
    return _PRODUCT.format(given=operand, numbers=", ".join(map(str, FP4)))


def body(attributes: Mapping[str, Any], present: frozenset[str]) -> str:
    """Return the ONNX model-local function; there is only one."""
    del attributes, present
    return _BODY.format(product=product("x_of_choices"))
