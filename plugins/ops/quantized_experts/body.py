"""``QuantizedExperts`` in standard opset-24 ops: choice by choice, dequantizing the one expert that it needs.

A choice is a pair of a token and one of its experts. The runtime chooses the summation order in float32, so results
differ from the kernel's in the last digits; an expert that does not exist is an error of the runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..quantized_linear.body import ROUNDED
from ..quantized_linear.unpacking_nodes import unpacking
from ..sparse_experts.body import gating, words_of

CHOICES = """
  inferred_1 = Constant<value_ints = [-1]>()
  middle_axis = Constant<value_ints = [1]>()
  tokens = Shape<start = 0, end = 1>(x)
  per_token = Shape<start = 1, end = 2>(experts)
  x_columns = Shape<start = 1, end = 2>(x)
  repeated_form = Concat<axis = 0>(tokens, per_token, x_columns)
  x_3 = Unsqueeze(x, middle_axis)
  x_repeated = Expand(x_3, repeated_form)
  flat_form = Concat<axis = 0>(inferred_1, x_columns)
  x_of_choices = Reshape(x_repeated, flat_form)
  expert_of_choices = Reshape(experts, inferred_1)
"""

# The matmul of every choice: rows of `given`, each with the matrix of its expert.
_PRODUCT = """
  {made} = Scan<num_scan_inputs = 2, body = of_{stack} (row, expert) => (product) {{
    codes = Gather({stack}_codes, expert)
    scales = Gather({stack}_scales, expert)
    row_axis = Constant<value_ints = [0]>()
    x_row = Unsqueeze(row, row_axis)
    {unpacking}
    {rounded}
    turned_matrix = Transpose<perm = [1, 0]>(matrix)
    product_2 = MatMul(x_rounded, turned_matrix)
    product = Squeeze(product_2, row_axis)
  }}>({given}, expert_of_choices)
"""
BIAS = """
  {stack}_shift = Gather({stack}_bias, expert_of_choices)
  {made} = Add({given}, {stack}_shift)
"""
HALVES = """
  all_rows = Constant<value_ints = [9223372036854775807]>()
  every_second = Constant<value_ints = [2]>()
  even = Constant<value_ints = [0]>()
  odd = Constant<value_ints = [1]>()
  gate = Slice(pairs, even, all_rows, inferred_1, every_second)
  up = Slice(pairs, odd, all_rows, inferred_1, every_second)
"""
SUM = """
  out_width = Shape<start = 1, end = 2>(out)
  out_form = Concat<axis = 0>(tokens, per_token, out_width)
  out_3 = Reshape(out, out_form)
  scores_3 = Unsqueeze(scores, inferred_1)
  weighed = Mul(out_3, scores_3)
  y = ReduceSum<keepdims = 0>(weighed, middle_axis)
"""
_TWICE_INNER = """
    inner_rows = Constant<value_int: int = @inner>()
    rows = Add(inner_rows, inner_rows)
"""
_HIDDEN = """
    rows = Constant<value_int: int = @hidden>()
"""


def body(attributes: Mapping[str, Any], present: frozenset[str]) -> str:
    """Return the ONNX model-local function for these attributes; its overload names the form."""
    formats = [str(attributes[f"{stack}_format"]) for stack in ("gate_up", "down")]
    has_bias = "gate_up_bias" in present
    overload = "_".join([*formats, *words_of(attributes, bias=has_bias)])
    inputs = "x, experts, scores, gate_up_codes, gate_up_scales, down_codes, down_scales"
    inputs += ", gate_up_bias, down_bias" * has_bias
    nodes = [
        CHOICES,
        *_product("gate_up", formats[0], _TWICE_INNER, "x_of_choices", "pairs", has_bias=has_bias),
        HALVES,
        gating("gate", "up", limited=bool(attributes["limit"]), cubic=bool(attributes["cubic"])),
        *_product("down", formats[1], _HIDDEN, "inner", "out", has_bias=has_bias),
        SUM,
    ]
    return f"""<opset_import: ["" : 24], domain: "peagle", overload: "{overload}">
QuantizedExperts <inner, hidden, alpha, beta, limit, cubic> ({inputs}) => (y) {{{"".join(nodes)}}}"""


def _product(stack: str, format: str, rows: str, input_name: str, output_name: str, *, has_bias: bool) -> list[str]:
    """Return the nodes from the rows ``input_name`` to the rows ``output_name``."""
    result = f"{output_name}_unshifted" if has_bias else output_name
    unpacked = unpacking(format, rows)
    rounded = ROUNDED.replace("(x)", "(x_row)").replace("(x, ", "(x_row, ")
    text = _PRODUCT.format(stack=stack, unpacking=unpacked, rounded=rounded, given=input_name, made=result)
    return [text, *([BIAS.format(stack=stack, given=result, made=output_name)] if has_bias else [])]
