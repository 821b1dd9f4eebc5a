"""Test cases of ``WideEmbedding``'s CPU kernel: ids of every tile, and more ids than one thread handles."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...op_spec import CpuCase
from ..wide_linear.packed_matrix import pack_matrix

ROWS, COLUMNS = 37, 5  # the last tile is partly filled


def cpu_cases() -> Iterator[CpuCase]:
    """The first, the last and another row of a matrix; then forty arbitrary rows."""
    rng = np.random.default_rng(0)
    matrix = pack_matrix(rng.normal(size=(ROWS, COLUMNS)).astype(np.float32))
    for ids in (np.array([0, ROWS - 1, 16]), rng.integers(0, ROWS, 40)):
        yield CpuCase((ids, matrix), {"rows": ROWS}, constants=("matrix",))
