"""``GrowTree`` in standard opset-24 ops: a loop that adds a draft to every row at a time. Cast targets: 6 int32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...graph_contract import DEEPEST, MAX_DRAFTS

_STATE = (
    "int64[R, E] ids_{0}, int64[R, E] skipped_{0}, float[R, E] score_{0}, int64[R, E] depth_{0}, int64[R, E] tried_{0}"
)

_BODY = f"""<opset_import: ["" : 24], domain: "peagle">
GrowTree (window_ids, candidate_ids, candidate_scores) => (window_ids_out, skipped) {{
  zero = Constant<value_ints = [0]>()
  one = Constant<value_ints = [1]>()
  two = Constant<value_ints = [2]>()
  first = Constant<value_int = 0>()
  step = Constant<value_int = 1>()
  least = Constant<value_float = -1e30>()
  zero_f = Constant<value_float = 0.0>()
  never = Log(zero_f)
  below = Constant<value_ints = {[(1 << bits) - 1 for bits in range(MAX_DRAFTS + 1)]}>()
  most = Constant<value_ints = [{DEEPEST}]>()
  positions = Shape<start=1, end=2>(candidate_ids)
  places = Shape<start=2, end=3>(candidate_ids)
  deepest = Min(positions, most)
  last_position = Sub(positions, one)
  last_place = Sub(places, one)
  columns_1 = Shape<start=1, end=2>(window_ids)
  columns = Squeeze(columns_1, zero)
  column = Range(first, columns, step)
  drafts = Sub(columns, step)
  none = Sub(window_ids, window_ids)
  none_f = Cast<to=1>(none)
  # Where no token is yet, nothing can follow.
  is_empty = Greater(column, first)
  too_deep = Where(is_empty, most, none)
  depths = Add(none, too_deep)
  going = Equal(step, step)
  window_ids_out, skipped, last_score, last_depth, last_tried =
    Loop (drafts, going, window_ids, none, none_f, depths, none)
    <body = draft (int64 i, bool goes, {_STATE.format("was")})
    => (bool goes_on, {_STATE.format("is")}) {{
    goes_on = Identity(goes)
    new = Add(i, step)
    is_shallow = Less(depth_was, deepest)
    has_next = Less(tried_was, places)
    free = And(is_shallow, has_next)
    position = Min(depth_was, last_position)
    place = Min(tried_was, last_place)
    position_3 = Unsqueeze(position, two)
    place_3 = Unsqueeze(place, two)
    at = Concat<axis=2>(position_3, place_3)
    own_raw = GatherND<batch_dims=1>(candidate_scores, at)
    is_score = Greater(own_raw, least)
    own = Where(is_score, own_raw, least)
    sum = Add(score_was, own)
    value = Where(free, sum, never)
    parent = ArgMax<axis=1, keepdims=1>(value)
    free_i = Cast<to=6>(free)
    any_i = ReduceMax<keepdims=1>(free_i, one)
    any = Cast<to=9>(any_i)
    is_column = Equal(column, new)
    is_new = And(is_column, any)
    is_column_of_parent = Equal(column, parent)
    is_parent = And(is_column_of_parent, any)
    found = GatherND<batch_dims=1>(candidate_ids, at)
    id = GatherElements<axis=1>(found, parent)
    ids_is = Where(is_new, id, ids_was)
    parents_score = GatherElements<axis=1>(value, parent)
    score_is = Where(is_new, parents_score, score_was)
    parents_depth = GatherElements<axis=1>(depth_was, parent)
    next_depth = Add(parents_depth, step)
    depth_is = Where(is_new, next_depth, depth_was)
    next_place = Add(tried_was, step)
    tried_is = Where(is_parent, next_place, tried_was)
    parents_skipped = GatherElements<axis=1>(skipped_was, parent)
    parents_end = Add(parent, step)
    below_new = Gather(below, new)
    below_end = Gather(below, parents_end)
    between = Sub(below_new, below_end)
    all_skipped = Add(parents_skipped, between)
    skipped_is = Where(is_new, all_skipped, skipped_was)
  }}>
}}"""


def body(attributes: Mapping[str, Any], present: frozenset[str]) -> str:
    """Return the ONNX model-local function; there is only one."""
    del attributes, present
    return _BODY
