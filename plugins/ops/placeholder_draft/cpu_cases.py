"""Test cases of ``PlaceholderDraft``'s CPU kernel: rows that keep all drafts or some, and idle ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...op_spec import CpuCase


def cpu_cases() -> Iterator[CpuCase]:
    """Windows of at most five columns, with three drafts."""
    rng = np.random.default_rng(0)
    lengths = np.array([[4, 3, 4], [5, 3, 2], [1, 0, 1], [3, 0, 0], [0, 0, 0]], np.int32)
    window, drafts, emitted = lengths.T.copy()
    rows = len(lengths)
    ids, tokens = rng.integers(0, 99, (rows, 5)), rng.integers(0, 99, (rows, 4)).astype(np.int32)
    start = rng.integers(0, 1000, rows)
    yield CpuCase((ids, start, window, drafts, tokens, emitted), {"mask_token_id": 99})
