"""``WideExperts`` in standard opset-24 ops: choice by choice, with the one expert that it needs.

The runtime chooses the summation order, so results differ from the kernel's in the last digits; an expert that does
not exist is an error of the runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..quantized_experts.body import BIAS, CHOICES, HALVES, SUM
from ..sparse_experts.body import gating, words_of

# The matmul of every choice: rows of `given`, each with the matrix of its expert, tile by tile.
_PRODUCT = """
  {made} = Scan<num_scan_inputs = 2, body = of_{stack} (row, expert) => (product) {{
    tiles = Gather({stack}, expert)
    row_axis = Constant<value_ints = [0]>()
    row_2 = Unsqueeze(row, row_axis)
    products = MatMul(row_2, tiles)
    whole = Constant<value_ints = [-1]>()
    filled_up = Reshape(products, whole)
    product = Slice(filled_up, row_axis, {stack}_rows, row_axis)
  }}>({given}, expert_of_choices)
"""
_ROWS = """
  inner_rows = Constant<value_int: int = @inner>()
  gate_up_rows_0 = Add(inner_rows, inner_rows)
  gate_up_rows = Reshape(gate_up_rows_0, inferred_1)
  hidden_rows = Constant<value_int: int = @hidden>()
  down_rows = Reshape(hidden_rows, inferred_1)
"""


def body(attributes: Mapping[str, Any], present: frozenset[str]) -> str:
    """Return the ONNX model-local function for these attributes; its overload names the form."""
    has_bias = "gate_up_bias" in present
    overload = "_".join(["wide", *words_of(attributes, bias=has_bias)])
    inputs = "x, experts, scores, gate_up, down" + ", gate_up_bias, down_bias" * has_bias
    nodes = [
        CHOICES,
        _ROWS,
        *_product("gate_up", "x_of_choices", "pairs", has_bias=has_bias),
        HALVES,
        gating("gate", "up", limited=bool(attributes["limit"]), cubic=bool(attributes["cubic"])),
        *_product("down", "inner", "out", has_bias=has_bias),
        SUM,
    ]
    return f"""<opset_import: ["" : 24], domain: "peagle", overload: "{overload}">
WideExperts <inner, hidden, alpha, beta, limit, cubic> ({inputs}) => (y) {{{"".join(nodes)}}}"""


def _product(stack: str, input_name: str, output_name: str, *, has_bias: bool) -> list[str]:
    """Return the nodes from the rows ``input_name`` to the rows ``output_name``."""
    result = f"{output_name}_unshifted" if has_bias else output_name
    text = _PRODUCT.format(stack=stack, given=input_name, made=result)
    return [text, *([BIAS.format(stack=stack, given=result, made=output_name)] if has_bias else [])]
