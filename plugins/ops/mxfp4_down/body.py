"""``Mxfp4Down`` in standard opset-24 ops: choice by choice, as the body of ``Mxfp4GateUp``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..mxfp4_gate_up.body import product

_BODY = """<opset_import: ["" : 24], domain: "peagle">
Mxfp4Down (inner, experts, scores, codes, exponents, bias) => (y) {{
  all = Constant<value_ints = [-1]>()
  middle_axis = Constant<value_ints = [1]>()
  inner_columns = Shape<start = 2, end = 3>(inner)
  flat_form = Concat<axis = 0>(all, inner_columns)
  inner_of_choices = Reshape(inner, flat_form)
{product}
  form = Shape(experts)
  out_form = Concat<axis = 0>(form, all)
  out = Reshape(products, out_form)
  scores_32 = Cast<to = 1>(scores)
  scores_3 = Unsqueeze(scores_32, all)
  weighed = Mul(out, scores_3)
  sum = ReduceSum<keepdims = 0>(weighed, middle_axis)
  y = CastLike(sum, scores)
}}"""


def body(attributes: Mapping[str, Any], present: frozenset[str]) -> str:
    """Return the ONNX model-local function; there is only one."""
    del attributes, present
    return _BODY.format(product=product("inner_of_choices"))
