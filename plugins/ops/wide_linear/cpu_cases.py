"""What the CPU kernel of ``WideLinear`` is tried with: sizes that are no whole tiles."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...op_spec import CpuCase
from .packed_matrix import pack_matrix

ROWS, COLUMNS = 85, 33  # of the matrix: tiles that go together, tiles that are left, and one that is not full


def cpu_cases() -> Iterator[CpuCase]:
    """One row, and eleven, which are multiplied in two parts."""
    rng = np.random.default_rng(1)
    matrix = pack_matrix(rng.normal(size=(ROWS, COLUMNS)).astype(np.float32))
    for rows in (1, 11):
        x = rng.normal(size=(rows, COLUMNS)).astype(np.float32)
        yield CpuCase((x, matrix), {"rows": ROWS}, constants=("matrix",))
