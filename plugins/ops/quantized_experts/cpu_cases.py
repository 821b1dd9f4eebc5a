"""Test cases of ``QuantizedExperts``' CPU kernel: every format, biases, clamps, GELU, an expert that nobody chose."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...op_spec import CpuCase
from ..quantized_linear.cpu_cases import random_matrix
from ..quantized_linear.packed_weights import FORMATS, Array
from ..sparse_experts.spec import CLAMPED, GELU

EXPERTS, CHOSEN = 5, 2


def cpu_cases() -> Iterator[CpuCase]:
    """Seven tokens; the two stacks have different formats, and the last expert is never chosen."""
    for at, name in enumerate(FORMATS):
        other = FORMATS[at - 1]
        yield _case(name, other, tokens=7, seed=at, has_bias=at % 2 == 0)


def _case(gate_up: str, down: str, *, tokens: int, seed: int, has_bias: bool) -> CpuCase:
    rng = np.random.default_rng(seed)
    columns = 256
    inner, hidden = 256, 40
    x = rng.normal(size=(tokens, columns)).astype(np.float32)
    experts = np.array([rng.permutation(EXPERTS - 1)[:CHOSEN] for _ in range(tokens)])
    scores = rng.random((tokens, CHOSEN), np.float32)
    stacks = [*random_stack(gate_up, 2 * inner, columns), *random_stack(down, hidden, inner)]
    sizes = ((EXPERTS, 2 * inner), (EXPERTS, hidden))
    biases = [rng.normal(size=size).astype(np.float32) if has_bias else None for size in sizes]
    attributes = {"gate_up_format": gate_up, "down_format": down, "inner": inner, "hidden": hidden}
    attributes |= CLAMPED if has_bias else GELU if seed % 3 == 0 else {}
    constants = ("gate_up_codes", "gate_up_scales", "down_codes", "down_scales")
    return CpuCase((x, experts, scores, *stacks, *biases), attributes, constants=constants)


def random_stack(name: str, rows: int, columns: int) -> tuple[Array, Array]:
    """Return packed codes and scales of five matrices [rows, columns]."""
    pairs = [random_matrix(name, rows, columns, seed) for seed in range(EXPERTS)]
    codes, scales = zip(*pairs, strict=True)
    return np.stack(codes), np.stack(scales)
