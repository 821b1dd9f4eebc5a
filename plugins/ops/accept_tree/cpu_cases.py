"""Test cases of ``AcceptTree``'s CPU kernel: rows of every policy, as chains and as siblings."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...op_spec import CpuCase
from ..accept_prefix.reference import draw

_VOCAB, _COLUMNS = 700, 3
_POLICIES = (  # temperature, top_k, top_p, min_p, tolerance
    (0.0, 0, 1.0, 0.0, 0.0),
    (0.0, 0, 1.0, 0.0, 0.9),
    (1.0, 0, 1.0, 0.0, 0.0),
    (0.7, 5, 1.0, 0.0, 0.0),
    (0.7, 0, 0.8, 0.0, 0.0),
    (1.3, 40, 0.9, 0.05, 0.3),
)


def cpu_cases() -> Iterator[CpuCase]:
    """Windows of four tokens per row, the last two of them drafts: first as parent and child, then as siblings."""
    case = _chains()
    rows, width = case.inputs[1].shape
    chain = np.tile(np.tri(width, k=-1, dtype=bool), (rows, 1, 1))
    yield CpuCase((*case.inputs, chain))
    siblings = chain.copy()
    siblings[:, 3, 2] = False
    swapped = case.inputs[1][:, [0, 1, 3, 2]]  # the second child will be drawn
    yield CpuCase((case.inputs[0], swapped, *case.inputs[2:], siblings))


def _chains() -> CpuCase:
    """One window of four tokens per row, the last two of them drafts; the first draft will be drawn."""
    rng = np.random.default_rng(0)
    rows = len(_POLICIES)
    logits = (3 * rng.normal(size=(rows, _COLUMNS, _VOCAB))).astype(np.float32)
    uniform = rng.random((rows, _COLUMNS), np.float32)
    heat, top_k, top_p, min_p, tolerance = np.array(_POLICIES).T
    ids = rng.integers(0, _VOCAB, (rows, 4))
    for b, (temperature, k, p, smallest, _) in enumerate(_POLICIES):
        ids[b, 2] = draw(logits[b, 0], uniform[b, 0], temperature, k, p, smallest)
    return CpuCase(
        (
            logits,
            ids,
            np.full(rows, 4, np.int32),
            np.full(rows, 2, np.int32),
            np.full(rows, -1),
            uniform,
            heat.astype(np.float32),
            top_k.astype(np.int32),
            top_p.astype(np.float32),
            min_p.astype(np.float32),
            tolerance.astype(np.float32),
        )
    )
