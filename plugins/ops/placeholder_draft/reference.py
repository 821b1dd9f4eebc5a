"""NumPy reference of ``PlaceholderDraft``, one row at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def placeholder_draft(
    input_ids: Array,
    start: Array,
    window_len: Array,
    draft_len: Array,
    tokens: Array,
    num_tokens: Array,
    *,
    mask_token_id: int,
) -> tuple[Array, Array, Array, Array, Array, Array, Array]:
    """Return the outputs in spec order for inputs in spec order."""
    batch, width = input_ids.shape
    k = tokens.shape[1] - 1
    rows = width + k - 1
    row_ids = np.full((batch, rows), mask_token_id, np.int64)
    row_is_real = np.zeros((batch, rows), np.bool_)
    emit_rows = np.zeros((batch, k), np.int64)
    newest = np.zeros(batch, np.int64)
    next_start = start.copy()
    next_window_len = np.zeros(batch, np.int32)
    next_draft_len = np.zeros(batch, np.int32)
    for b in range(batch):
        window = min(max(int(window_len[b]), 0), width)
        drafts = max(min(int(draft_len[b]), k, window - 1), 0)
        emitted = min(max(int(num_tokens[b]), 0), drafts + 1)
        c0 = window - 1 - drafts  # window column of the newest token that the target was fed
        real = c0 + emitted if window > 0 and emitted > 0 else 0
        for c in range(real):
            row_ids[b, c] = input_ids[b, c + 1] if c < c0 else tokens[b, c - c0]
            row_is_real[b, c] = True
        for j in range(k):
            emit_rows[b, j] = max(real - 1 + j, 0)
        if real:
            newest[b] = tokens[b, emitted - 1]
            next_start[b] = start[b] + real
            next_window_len[b] = k + 1
            next_draft_len[b] = k
    return row_ids, row_is_real, emit_rows, newest, next_start, next_window_len, next_draft_len
