"""``WideEmbedding`` in standard opset-24 ops: gather the tile of each id, then its lane in every column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def body(attributes: Mapping[str, Any], present: frozenset[str]) -> str:
    """Return the ONNX model-local function."""
    del attributes, present
    return """<opset_import: ["" : 24], domain: "peagle">
WideEmbedding <rows> (ids, matrix) => (y) {
  tile_rows = Constant<value_int = 16>()
  tile = Div(ids, tile_rows)
  lane = Mod(ids, tile_rows)
  tiles = Gather(matrix, tile)
  columns = Shape<start = 0, end = -1>(tiles)
  one = Constant<value_ints = [1]>()
  of_one_lane = Concat<axis = 0>(columns, one)
  behind = Constant<value_ints = [-1, -2]>()
  lane_3 = Unsqueeze(lane, behind)
  lanes = Expand(lane_3, of_one_lane)
  taken = GatherElements<axis = -1>(tiles, lanes)
  last = Constant<value_ints = [-1]>()
  y = Squeeze(taken, last)
}"""
