"""NumPy reference of ``Mxfp4Down``, bit for bit: one token and one of its experts at a time."""

from __future__ import annotations

import numpy as np

from ..mxfp4_gate_up.blocks import Array, products
from ..quantized_linear.reference import fused_multiply_add


def mxfp4_down(
    inner: Array, experts: Array, scores: Array, codes: Array, exponents: Array, bias: Array
) -> tuple[Array]:
    """Return y [N, H] in the type of the scores, for inputs in spec order."""
    y = np.zeros((len(inner), codes.shape[1]), np.float32)
    for n, rows in enumerate(inner):
        for row, expert, score in zip(rows, experts[n], scores[n].astype(np.float32), strict=True):
            out = np.full_like(y[n], np.nan)
            if 0 <= expert < len(codes):
                out = products(row[None], codes[expert], exponents[expert])[0] + bias[expert].astype(np.float32)
            y[n] = fused_multiply_add(np.full_like(out, score), out, y[n])
    with np.errstate(over="ignore"):
        return (y.astype(scores.dtype),)
