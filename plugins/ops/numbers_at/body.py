"""``NumbersAt`` in standard opset-24 ops. Cast target: 7 int64.

Min and Max never see a number past 32 bits: ONNX Runtime's CPU kernels (1.31) return wrong results for some.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_BODY = """<opset_import: ["" : 24], domain: "peagle">
NumbersAt <columns> (numbers, start, window_len, draft_len) => (uniform) {
  zero = Constant<value_ints = [0]>()
  one = Constant<value_ints = [1]>()
  zero_f = Constant<value_float = 0.0>()
  first_column = Constant<value_int = 0>()
  step = Constant<value_int = 1>()
  stop = Constant<value_int: int = @columns>()
  j = Range(first_column, stop, step)
  columns_1 = Unsqueeze(stop, zero)
  length = Shape<start=1, end=2>(numbers)

  # Lengths, clamped to what the tensors hold. All are [B].
  window_64 = Cast<to=7>(window_len)
  window_0 = Max(window_64, zero)
  window_most = Add(length, columns_1)
  window = Min(window_0, window_most)
  live = Greater(window, zero)
  last_column = Sub(columns_1, one)
  last_valid = Sub(window, one)
  drafts_64 = Cast<to=7>(draft_len)
  drafts_most = Min(drafts_64, last_column, last_valid)
  drafts = Max(drafts_most, zero)
  negative = Less(start, zero)
  start_0 = Where(negative, zero, start)
  inside = Less(start_0, length)
  start_in = Where(inside, start_0, length)
  ahead = Sub(window, drafts)
  first = Add(start_in, ahead)

  first_2 = Unsqueeze(first, one)
  at = Add(first_2, j)
  in_table = Less(at, length)
  last = Sub(length, one)
  at_in = Min(at, last)
  read = GatherElements<axis=1>(numbers, at_in)
  live_2 = Unsqueeze(live, one)
  has_number = And(live_2, in_table)
  uniform = Where(has_number, read, zero_f)
}"""


def body(attributes: Mapping[str, Any], present: frozenset[str]) -> str:
    """Return the ONNX model-local function; it takes ``columns`` from the node, so there is only one."""
    del attributes, present
    return _BODY
