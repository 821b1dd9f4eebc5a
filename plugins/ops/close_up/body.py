"""``CloseUp`` in standard opset-24 ops: every position gathers the entry that comes to it.

Paths are ascending, so moving all entries at once has the same result as moving them one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_BODY = """<opset_import: ["" : 24], domain: "peagle">
CloseUp (entries, start, path) => (closed) {
  zero = Constant<value_int = 0>()
  step = Constant<value_int = 1>()
  zero_1 = Constant<value_ints = [0]>()
  one = Constant<value_ints = [1]>()
  shape = Shape(entries)
  rows = Shape<start=1, end=2>(entries)
  length_1 = Shape<start=3, end=4>(entries)
  length = Squeeze(length_1)
  paths_1 = Shape<start=0, end=1>(path)
  paths = Squeeze(paths_1)
  columns_1 = Shape<start=1, end=2>(path)
  columns = Squeeze(columns_1)
  position = Range(zero, length, step)

  # Which column of the path comes to each position, [B, T].
  path_64 = Cast<to=7>(path)
  first = Slice(path_64, zero_1, one, one)
  start_2 = Unsqueeze(start, one)
  begin = Add(start_2, first)
  place = Sub(position, begin)
  begun = GreaterOrEqual(place, zero)
  left = Less(place, columns)
  inside = And(begun, left)
  place_in = Where(inside, place, zero)
  column = GatherElements<axis=1>(path_64, place_in)
  source = Add(start_2, column)
  negatives = Constant<value_int = -1>()
  is_column = Greater(column, negatives)
  is_position = GreaterOrEqual(source, zero)
  is_within = Less(source, length)
  is_there = And(is_position, is_within)
  is_valid = And(is_column, is_there)
  moves = And(inside, is_valid)
  source_of_path = Where(moves, source, position)

  # The other rows stay.
  others_1 = Sub(rows, paths_1)
  others_shape = Concat<axis=0>(others_1, length_1)
  others = Expand(position, others_shape)
  source_2 = Concat<axis=0>(source_of_path, others)
  around = Constant<value_ints = [0, 2, 4]>()
  source_5 = Unsqueeze(source_2, around)
  sources = Expand(source_5, shape)
  entries_32 = Cast<to=6>(entries)
  closed_32 = GatherElements<axis=3>(entries_32, sources)
  closed = Cast<to=3>(closed_32)
}"""


def body(attributes: Mapping[str, Any], present: frozenset[str]) -> str:
    """Return the ONNX model-local function; there is only one."""
    del attributes, present
    return _BODY
