"""NumPy reference of ``WideExperts``, bit for bit: one token and one of its experts at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..quantized_experts.reference import gate
from ..wide_linear.reference import wide_linear

Array = NDArray[Any]


def wide_experts(
    x: Array,
    experts: Array,
    scores: Array,
    gate_up: Array,
    down: Array,
    gate_up_bias: Array | None = None,
    down_bias: Array | None = None,
    *,
    inner: int,
    hidden: int,
    alpha: float,
    beta: float,
    limit: float,
) -> tuple[Array]:
    """Return y, float32 [N, hidden]."""
    y = np.zeros((len(x), hidden), np.float32)
    for n, token in enumerate(x):
        for expert, score in zip(experts[n], scores[n], strict=True):
            if not 0 <= expert < len(gate_up):
                y[n] = np.nan
                break
            (pairs,) = wide_linear(token[None], gate_up[expert], rows=2 * inner)
            if gate_up_bias is not None:
                pairs = pairs + gate_up_bias[expert]
            inner_row = gate(pairs, np.float32(alpha), np.float32(beta), np.float32(limit))
            (out,) = wide_linear(inner_row, down[expert], rows=hidden)
            if down_bias is not None:
                out = out + down_bias[expert]
            with np.errstate(over="ignore", invalid="ignore"):
                y[n] += score * out[0]
    return (y,)
