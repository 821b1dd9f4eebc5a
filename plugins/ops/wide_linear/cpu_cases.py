"""Test cases of ``WideLinear``'s CPU kernel: sizes that are not multiples of a tile."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...op_spec import CpuCase
from .packed_matrix import pack_matrix

ROWS, COLUMNS = 85, 33  # of the matrix: tiles processed together, remaining tiles, and one that is partly filled


def cpu_cases() -> Iterator[CpuCase]:
    """One row, then eleven, which are multiplied in two parts."""
    rng = np.random.default_rng(1)
    matrix = pack_matrix(rng.normal(size=(ROWS, COLUMNS)).astype(np.float32))
    for rows in (1, 11):
        x = rng.normal(size=(rows, COLUMNS)).astype(np.float32)
        yield CpuCase((x, matrix), {"rows": ROWS}, constants=("matrix",))
