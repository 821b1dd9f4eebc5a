"""NumPy reference of ``GrowTree``, one draft at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graph_contract import DEEPEST

Array = NDArray[Any]

MIN = np.float32(-1e30)  # of a score; also in place of NaN


def grow_tree(window_ids: Array, candidate_ids: Array, candidate_scores: Array) -> tuple[Array, Array]:
    """Return window_ids int64 [B, E] and skipped int64 [B, E]; the inputs are in spec order."""
    rows, columns = window_ids.shape
    _, positions, num_candidates = candidate_ids.shape
    ids, skipped = window_ids.copy(), np.zeros((rows, columns), np.int64)
    for b in range(rows):
        scores, depths, tried = [np.float32(0)], [0], [0]  # of the newest token, then of every draft
        for column in range(1, columns):
            free = [at for at in range(column) if depths[at] < min(positions, DEEPEST) and tried[at] < num_candidates]
            if not free:
                break
            each = {at: _sum(scores[at], candidate_scores[b, depths[at], tried[at]]) for at in free}
            parent = max(each, key=lambda at: each[at])  # the first of several
            ids[b, column] = candidate_ids[b, depths[parent], tried[parent]]
            between = sum(1 << other for other in range(parent + 1, column))
            skipped[b, column] = int(skipped[b, parent]) + between
            tried[parent] += 1
            scores, depths, tried = [*scores, each[parent]], [*depths, depths[parent] + 1], [*tried, 0]
    return ids, skipped


def _sum(score: Any, other: Any) -> Any:
    return score + (other if other > MIN else MIN)
