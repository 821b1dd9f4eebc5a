"""``WideLinear`` in standard opset-24 ops: multiply every tile in place, without copying the matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def body(attributes: Mapping[str, Any], present: frozenset[str]) -> str:
    """Return the ONNX model-local function."""
    del attributes, present
    return """<opset_import: ["" : 24], domain: "peagle">
WideLinear <rows> (x, matrix) => (y) {
  columns = Shape<start = -1>(x)
  inferred = Constant<value_ints = [-1]>()
  flat_form = Concat<axis = 0>(inferred, columns)
  flat = Reshape(x, flat_form)
  products = MatMul(flat, matrix)
  turned = Transpose<perm = [1, 0, 2]>(products)
  filled_up = Flatten<axis = 1>(turned)
  zero = Constant<value_ints = [0]>()
  one = Constant<value_ints = [1]>()
  rows = Constant<value_int: int = @rows>()
  rows_1 = Reshape(rows, one)
  cut = Slice(filled_up, zero, rows_1, one)
  lead = Shape<start = 0, end = -1>(x)
  form = Concat<axis = 0>(lead, rows_1)
  y = Reshape<allowzero = 1>(cut, form)
}"""
