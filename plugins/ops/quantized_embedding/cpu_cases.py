"""Test cases of ``QuantizedEmbedding``'s CPU kernel: every format, the first row and the last."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...op_spec import CpuCase
from ..quantized_linear.cpu_cases import ROWS, columns_of, random_matrix
from ..quantized_linear.packed_weights import FORMATS


def cpu_cases() -> Iterator[CpuCase]:
    """A few rows of a matrix of 37, then more than one work item covers."""
    few, many = np.array([0, ROWS - 1, 16]), np.arange(ROWS).reshape(1, -1)
    for name in FORMATS:
        attributes = {"format": name, "rows": ROWS, "columns": columns_of(name)}
        for ids in (few, many):
            yield CpuCase((ids, *random_matrix(name)), attributes, constants=("codes", "scales"))
