"""NumPy reference of ``Mxfp4GateUp``, bit for bit: one token and one of its experts at a time."""

from __future__ import annotations

import numpy as np

from ..quantized_experts.reference import gate
from .blocks import Array, products


def mxfp4_gate_up(
    x: Array,
    experts: Array,
    codes: Array,
    exponents: Array,
    bias: Array,
    alpha: Array,
    beta: Array,
    limit: Array,
) -> tuple[Array]:
    """Return inner, float32 [N, A, I], for inputs in spec order."""
    count, width = codes.shape[:2]
    inner = np.full((*experts.shape, width), np.nan, np.float32)
    stacked = codes.reshape(count, 2 * width, *codes.shape[3:]), exponents.reshape(count, 2 * width, -1)
    for n, token in enumerate(x.astype(np.float32)):
        for a, expert in enumerate(experts[n]):
            if 0 <= expert < count:
                pairs = products(token[None], *(stack[expert] for stack in stacked)) + bias[expert].astype(np.float32)
                inner[n, a] = gate(pairs, np.float32(alpha), np.float32(beta), np.float32(limit), np.float32(0))[0]
    return (inner,)
