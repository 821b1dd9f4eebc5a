"""``AcceptPrefix`` in standard opset-24 ops: each column's own token, and the drafts up to the first mismatch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .own_tokens import EMISSION, OWN_TOKENS, agreement

_VERDICTS = """
    best_score_3 = GatherElements<axis=2>(scores, best)
    best_score = Squeeze(best_score_3, two)
    d_in_3 = Unsqueeze(d_in, two)
    d_score_3 = GatherElements<axis=2>(scores, d_in_3)
    d_score = Squeeze(d_score_3, two)
"""

_BODY = f"""<opset_import: ["" : 24], domain: "peagle">
AcceptPrefix (logits, input_ids, window_len, draft_len, forced_next,
              uniform, temperature, top_k, top_p, min_p, tolerance) => (tokens, num_tokens) {{
{OWN_TOKENS}
  # d: the draft that stands where y may be emitted.
  first_draft = Sub(window, drafts)
  first_draft_2 = Unsqueeze(first_draft, one)
  d_at_raw = Add(first_draft_2, j)
  last_id = Sub(width, one)
  d_at = Min(d_at_raw, last_id)
  d = GatherElements<axis=1>(input_ids, d_at)
  same = Equal(d, y)
{agreement(_VERDICTS)}
  # The accepted prefix ends at the first column that fails; the last one always does.
  is_draft = Less(j, drafts_2)
  passes = And(agrees, is_draft)
  passes_i = Cast<to=6>(passes)
  accepted = ArgMin<axis=1, keepdims=1>(passes_i)

  before_end = Less(j, accepted)
  at_end = Equal(j, accepted)
  y_or_none = Where(at_end, y, minus_one)
  emitted = Where(before_end, d, y_or_none)
{EMISSION}}}"""


def body(attributes: Mapping[str, Any], present: frozenset[str]) -> str:
    """Return the ONNX model-local function; without attributes and optional inputs there is only one."""
    del attributes, present
    return _BODY
