"""``PlaceholderDraft`` in standard opset-24 ops. Cast targets: 6 int32, 7 int64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_BODY = """<opset_import: ["" : 24], domain: "peagle">
PlaceholderDraft <mask_token_id> (input_ids, start, window_len, draft_len, tokens, num_tokens)
  => (row_ids, row_is_real, emit_rows, newest, next_start, next_window_len, next_draft_len) {
  zero = Constant<value_ints = [0]>()
  one = Constant<value_ints = [1]>()
  first = Constant<value_int = 0>()
  step = Constant<value_int = 1>()
  mask_id = Constant<value_int: int = @mask_token_id>()
  width = Shape<start=1, end=2>(input_ids)
  columns = Shape<start=1, end=2>(tokens)
  k = Sub(columns, one)
  width_and_k = Add(width, k)
  rows = Sub(width_and_k, one)
  rows_0 = Squeeze(rows, zero)
  c = Range(first, rows_0, step)
  k_0 = Squeeze(k, zero)
  j = Range(first, k_0, step)

  # Lengths, clamped to what the tensors hold. All are [B].
  window_64 = Cast<to=7>(window_len)
  window_0 = Max(window_64, zero)
  window = Min(window_0, width)
  last_valid = Sub(window, one)
  drafts_64 = Cast<to=7>(draft_len)
  drafts_most = Min(drafts_64, k, last_valid)
  drafts = Max(drafts_most, zero)
  emitted_64 = Cast<to=7>(num_tokens)
  emitted_0 = Max(emitted_64, zero)
  emitted_most = Add(drafts, one)
  emitted = Min(emitted_0, emitted_most)
  has_window = Greater(window, zero)
  has_tokens = Greater(emitted, zero)
  live = And(has_window, has_tokens)
  c0 = Sub(last_valid, drafts)
  committed = Add(c0, emitted)
  real = Where(live, committed, zero)

  # Rows: the window shifted by one, then what was emitted, then the mask token.
  c0_2 = Unsqueeze(c0, one)
  real_2 = Unsqueeze(real, one)
  row_is_real = Less(c, real_2)
  next_c = Add(c, one)
  last_id = Sub(width, one)
  id_at_1 = Min(next_c, last_id)
  zero_per_row = Mul(c0_2, zero)
  id_at = Add(id_at_1, zero_per_row)
  shifted = GatherElements<axis=1>(input_ids, id_at)
  tokens_64 = Cast<to=7>(tokens)
  token_at_raw = Sub(c, c0_2)
  token_at_0 = Max(token_at_raw, zero)
  token_at = Min(token_at_0, k)
  emitted_ids = GatherElements<axis=1>(tokens_64, token_at)
  in_window = Less(c, c0_2)
  real_ids = Where(in_window, shifted, emitted_ids)
  row_ids = Where(row_is_real, real_ids, mask_id)

  last_real = Sub(real_2, one)
  emit_raw = Add(last_real, j)
  emit_rows = Max(emit_raw, zero)

  newest_raw = Sub(emitted, one)
  newest_at_1 = Max(newest_raw, zero)
  newest_at = Unsqueeze(newest_at_1, one)
  newest_2 = GatherElements<axis=1>(tokens_64, newest_at)
  newest_1 = Squeeze(newest_2, one)
  newest = Where(live, newest_1, zero)
  next_start = Add(start, real)
  next_window = Where(live, columns, zero)
  next_window_len = Cast<to=6>(next_window)
  next_drafts = Where(live, k, zero)
  next_draft_len = Cast<to=6>(next_drafts)
}"""


def body(attributes: Mapping[str, Any], present: frozenset[str]) -> str:
    """Return the ONNX model-local function; it takes ``mask_token_id`` from the node, so there is only one."""
    del attributes, present
    return _BODY
