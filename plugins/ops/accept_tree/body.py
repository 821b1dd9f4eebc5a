"""``AcceptTree`` in standard opset-24 ops: each column's own token, the child it continues with, and the walk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..accept_prefix.own_tokens import EMISSION, OWN_TOKENS, agreement

_VERDICTS = """
    best_scores_3 = GatherElements<axis=2>(scores, best)
    best_scores = Squeeze(best_scores_3, two)
    best_score = GatherElements<axis=1>(best_scores, parent)
    parent_3 = Unsqueeze(parent, two)
    d_in_3 = Unsqueeze(d_in, two)
    d_at = Concat<axis=2>(parent_3, d_in_3)
    d_score = GatherND<batch_dims=1>(scores, d_at)
"""

_BODY = f"""<opset_import: ["" : 24], domain: "peagle">
AcceptTree (logits, input_ids, window_len, draft_len, forced_next,
            uniform, temperature, top_k, top_p, min_p, tolerance, ancestors) => (tokens, num_tokens, path) {{
{OWN_TOKENS}
  # Column 0 is the newest token that is no draft; d of column i of 1 .. drafts is a draft.
  newest_any = Sub(last_valid, drafts)
  newest = Max(newest_any, zero)
  newest_2 = Unsqueeze(newest, one)
  newest_any_2 = Unsqueeze(newest_any, one)
  at_raw = Add(newest_2, j)
  last_id = Sub(width, one)
  at = Min(at_raw, last_id)
  d = GatherElements<axis=1>(input_ids, at)
  is_behind = Greater(j, zero)
  is_within = LessOrEqual(j, drafts_2)
  is_draft = And(is_behind, is_within)

  # The parent of a column is the last earlier one that it names; column 0 is an ancestor of all.
  rows_at_3 = Unsqueeze(at, two)
  rows_shape = Concat<axis=0>(one, one, width)
  rows_at = Expand(rows_at_3, rows_shape)
  rows = GatherElements<axis=1>(ancestors, rows_at)
  columns_at_3 = Unsqueeze(at, one)
  square = Concat<axis=0>(one, columns, one)
  columns_at = Expand(columns_at_3, square)
  named = GatherElements<axis=2>(rows, columns_at)
  i = Unsqueeze(j, one)
  is_earlier = Less(j, i)
  is_named = And(named, is_earlier)
  named_at = Where(is_named, j, zero)
  parent = ReduceMax<keepdims=0>(named_at, two)
  y_before = GatherElements<axis=1>(y, parent)
  is_y = Equal(d, y_before)
  same = And(is_y, is_draft)
{agreement(_VERDICTS)}
  # A column goes on to the first child that is its y, else to the first that is tolerated, else nowhere.
  follows = And(agrees, is_draft)
  same_i = Cast<to=6>(same)
  follows_i = Cast<to=6>(follows)
  worth = Add(same_i, follows_i)
  worth_2 = Unsqueeze(worth, one)
  parent_2 = Unsqueeze(parent, one)
  is_child = Equal(parent_2, i)
  nothing = Cast<to=6>(zero)
  worth_of = Where(is_child, worth_2, nothing)
  child = ArgMax<axis=2, keepdims=0>(worth_of)
  worth_of_child = ReduceMax<keepdims=0>(worth_of, two)
  goes_on = Greater(worth_of_child, nothing)
  next = Where(goes_on, child, j)

  root = Mul(drafts_2, zero)
  going = Equal(zero, zero)
  going_0 = Squeeze(going, zero)
  last_step, steps = Loop (stop, going_0, root) <body = walk (int64 step_at, bool goes, int64[R, 1] here)
    => (bool goes_still, int64[R, 1] there, int64[R, 1] stood) {{
    goes_still = Identity(goes)
    there = GatherElements<axis=1>(next, here)
    stood = Identity(here)
  }}>
  steps_2 = Squeeze(steps, two)
  columns_on_path = Transpose<perm = [1, 0]>(steps_2)
  next_on_path = GatherElements<axis=1>(next, columns_on_path)
  stays = Equal(next_on_path, columns_on_path)
  moves = Not(stays)
  moves_64 = Cast<to=7>(moves)
  accepted = ReduceSum<keepdims=1>(moves_64, one)
  d_next = GatherElements<axis=1>(d, next_on_path)
  y_on_path = GatherElements<axis=1>(y, columns_on_path)
  at_end = Equal(j, accepted)
  y_or_none = Where(at_end, y_on_path, minus_one)
  emitted = Where(moves, d_next, y_or_none)
{EMISSION}
  columns_of_window = Add(newest_any_2, columns_on_path)
  is_on_path = LessOrEqual(j, accepted)
  is_live_path = And(is_on_path, live_2)
  path_64 = Where(is_live_path, columns_of_window, minus_one)
  path = Cast<to=6>(path_64)
}}"""


def body(attributes: Mapping[str, Any], present: frozenset[str]) -> str:
    """Return the ONNX model-local function; without attributes and optional inputs there is only one."""
    del attributes, present
    return _BODY
