"""Test cases of ``WideExperts``' CPU kernel: partly filled tiles, biases, clamps, GELU, an expert that nobody chose."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...op_spec import CpuCase
from ..sparse_experts.spec import CLAMPED, GELU
from ..wide_linear.packed_matrix import pack_matrix

EXPERTS, CHOSEN, COLUMNS, INNER, HIDDEN = 5, 2, 33, 20, 41


def cpu_cases() -> Iterator[CpuCase]:
    """Seven tokens, without biases and clamps, with both, and with GELU; the last expert is never chosen."""
    rng = np.random.default_rng(1)
    gates: tuple[tuple[bool, dict[str, float]], ...] = ((False, {}), (True, CLAMPED), (False, GELU))
    for has_bias, gate in gates:
        x = rng.normal(size=(7, COLUMNS)).astype(np.float32)
        experts = np.array([rng.permutation(EXPERTS - 1)[:CHOSEN] for _ in x])
        shapes = (EXPERTS, 2 * INNER, COLUMNS), (EXPERTS, HIDDEN, INNER)
        wide = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
        stacks = [np.stack([pack_matrix(matrix) for matrix in stack]) for stack in wide]
        biases = [rng.normal(size=shape[:2]).astype(np.float32) if has_bias else None for shape in shapes]
        attributes: dict[str, float] = {"inner": INNER, "hidden": HIDDEN, **gate}
        scores = rng.random((7, CHOSEN), np.float32)
        yield CpuCase((x, experts, scores, *stacks, *biases), attributes, constants=("gate_up", "down"))
