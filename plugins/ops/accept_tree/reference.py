"""NumPy reference of ``AcceptTree``: one row, one column, one child at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..accept_prefix.reference import draw, is_within_tolerance

Array = NDArray[Any]


def parent_of(ancestors: Array, newest: int, draft: int) -> int:
    """Return the parent column of a draft: the last earlier draft among its ancestors, or column ``newest``.

    ancestors: bool [S, S]. Drafts are the columns after ``newest``.
    """
    return max((column for column in range(newest + 1, draft) if ancestors[draft, column]), default=newest)


def accept_tree(
    logits: Array,
    input_ids: Array,
    window_len: Array,
    draft_len: Array,
    forced_next: Array,
    uniform: Array,
    temperature: Array,
    top_k: Array,
    top_p: Array,
    min_p: Array,
    tolerance: Array,
    ancestors: Array,
) -> tuple[Array, Array, Array]:
    """Return tokens int32 [B, E], num_tokens int32 [B] and path int32 [B, E]; the inputs are in spec order."""
    batch, columns, _ = logits.shape
    tokens = np.full((batch, columns), -1, np.int32)
    path = np.full((batch, columns), -1, np.int32)
    num_tokens = np.zeros(batch, np.int32)
    for b in range(batch):
        window = min(max(int(window_len[b]), 0), input_ids.shape[1])
        if window == 0:
            continue
        if forced_next[b] >= 0:
            tokens[b, 0], num_tokens[b], path[b, 0] = forced_next[b], 1, window - 1
            continue
        drafts = max(min(int(draft_len[b]), columns - 1, window - 1), 0)
        newest = window - 1 - drafts
        children: dict[int, list[int]] = {}
        for draft in range(newest + 1, window):
            children.setdefault(parent_of(ancestors[b], newest, draft), []).append(draft)
        here: int | None = newest
        while here is not None:
            j = here - newest
            path[b, num_tokens[b]] = here
            column = logits[b, j].astype(np.float32)
            y = draw(column, uniform[b, j], temperature[b], int(top_k[b]), float(top_p[b]), min_p[b])
            ids = {child: int(input_ids[b, child]) for child in children.get(here, ())}
            same = (child for child in ids if ids[child] == y)
            near = (child for child in ids if is_within_tolerance(column, ids[child], temperature[b], tolerance[b]))
            here = next(same, next(near, None))
            tokens[b, num_tokens[b]] = y if here is None else ids[here]
            num_tokens[b] += 1
    return tokens, num_tokens, path
