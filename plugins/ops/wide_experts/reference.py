"""NumPy reference of ``WideExperts``, bit for bit: one expert at a time, then the sum of each token's experts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..quantized_experts.reference import add_experts
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
    cubic: float = 0.0,
) -> tuple[Array]:
    """Return y, float32 [N, hidden]."""

    def multiply_gate_up(expert: int, rows: Array) -> Array:
        return wide_linear(rows, gate_up[expert], rows=2 * inner)[0]

    def multiply_down(expert: int, rows: Array) -> Array:
        return wide_linear(rows, down[expert], rows=hidden)[0]

    y = np.zeros((len(x), hidden), np.float32)
    products = multiply_gate_up, multiply_down
    terms = np.float32(alpha), np.float32(beta), np.float32(limit), np.float32(cubic)
    return (add_experts(y, x, experts, scores, len(gate_up), *products, gate_up_bias, down_bias, terms),)
