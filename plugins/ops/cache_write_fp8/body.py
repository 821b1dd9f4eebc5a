"""``CacheWriteFp8`` in standard opset-24 ops. Cast targets: 1 float32, 17 float8e4m3fn.

Every cache position gathers the column that belongs to it, because ONNX Runtime cannot scatter FP8 and TensorScatter
rejects a column without a position. Converting E4M3 to float32 and back is exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PLACES = """
  zero = Constant<value_int = 0>()
  step = Constant<value_int = 1>()
  one = Constant<value_ints = [1]>()
  around = Constant<value_ints = [1, 3]>()
  shape = Shape(k_cache)
  slots_1 = Shape<start=2, end=3>(k_cache)
  slots = Squeeze(slots_1)
  width = Shape<start=2, end=3>(k)
  slot = Range(zero, slots, step)
  start_2 = Unsqueeze(start, one)
  column = Sub(slot, start_2)
  begun = GreaterOrEqual(column, zero)
  left = Less(column, width)
  new_2 = And(begun, left)
  column_in = Where(new_2, column, zero)
  new = Unsqueeze(new_2, around)
  column_4 = Unsqueeze(column_in, around)
  columns = Expand(column_4, shape)
"""

_WRITE = """
  {x}_wide = Cast<to=1>({x})
  {x}_codes = QuantizeLinear<output_dtype=17>({x}_wide, {x}_scale)
  {x}_new = Cast<to=1>({x}_codes)
  {x}_here = GatherElements<axis=2>({x}_new, columns)
  {x}_old = Cast<to=1>({x}_cache)
  {x}_all = Where(new, {x}_here, {x}_old)
  {x}_out = Cast<to=17>({x}_all)
"""

_INPUTS = "k_cache, v_cache, k, v, start, k_scale, v_scale"
_BODY = f"""<opset_import: ["" : 24], domain: "peagle">
CacheWriteFp8 ({_INPUTS}) => (k_out, v_out) {{{_PLACES}{_WRITE.format(x="k")}{_WRITE.format(x="v")}}}"""


def body(attributes: Mapping[str, Any], present: frozenset[str]) -> str:
    """Return the ONNX model-local function; there is only one."""
    del attributes, present
    return _BODY
