"""NumPy reference of ``SparseExperts``: one token and one of its experts at a time, in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...number_types import BY_NUMPY, INT8, nearest_e4m3

Array = NDArray[Any]


def sparse_experts(
    x: Array,
    experts: Array,
    scores: Array,
    gate_up: Array,
    down: Array,
    gate_up_bias: Array | None = None,
    down_bias: Array | None = None,
    *,
    alpha: float,
    beta: float,
    limit: float,
    cubic: float = 0.0,
    inner_codes: str = "",
    inner_scale: float = 1.0,
) -> tuple[Array]:
    """Return the output of the op's spec for inputs in spec order."""
    y = np.zeros(x.shape, np.float32)
    for n, token in enumerate(x.astype(np.float32)):
        for expert, score in zip(experts[n], scores[n].astype(np.float32), strict=True):
            hidden = gate_up[expert].astype(np.float32) @ token
            if gate_up_bias is not None:
                hidden = hidden + gate_up_bias[expert].astype(np.float32)
            gate, up = hidden[0::2], hidden[1::2]
            if limit:
                gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
            with np.errstate(over="ignore"):  # infinite, which makes inner 0
                inner = (up + beta) * gate / (1 + np.exp(-alpha * (gate + cubic * gate**3)))
            if inner_codes:
                inner = _rounded(inner, inner_codes, np.float32(inner_scale))
            out = down[expert].astype(np.float32) @ inner
            if down_bias is not None:
                out = out + down_bias[expert].astype(np.float32)
            y[n] += score * out
    return (y.astype(x.dtype),)


def _rounded(values: Array, codes: str, scale: np.float32) -> Array:
    """Round to the nearest code, ties to even, saturating; multiply with the scale."""
    quotient = np.asarray(values, np.float32) / scale
    if BY_NUMPY[codes] is INT8:
        levels: Array = np.clip(np.rint(quotient), INT8.smallest, INT8.largest).astype(np.float32) * scale
        return levels
    return nearest_e4m3(quotient) * scale
