"""What the CPU kernel of ``AcceptTree`` is tried with: the cases of ``AcceptPrefix`` as chains and as siblings."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...op_spec import CpuCase
from ..accept_prefix.cpu_cases import cpu_cases as cases_of_chains


def cpu_cases() -> Iterator[CpuCase]:
    """Windows of four tokens a row, the last two of them drafts: the second behind the first, then beside it."""
    for case in cases_of_chains():
        rows, width = case.inputs[1].shape
        chain = np.tile(np.tri(width, k=-1, dtype=bool), (rows, 1, 1))
        yield CpuCase((*case.inputs, chain))
        siblings = chain.copy()
        siblings[:, 3, 2] = False
        swapped = case.inputs[1][:, [0, 1, 3, 2]]  # what will be drawn is the second child
        yield CpuCase((case.inputs[0], swapped, *case.inputs[2:], siblings))
