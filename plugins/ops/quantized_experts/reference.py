"""NumPy reference of ``QuantizedExperts``, bit for bit: one expert at a time, then the sum of each token's experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..quantized_linear.reference import fused_multiply_add, quantized_linear

Array = NDArray[Any]
Product = Callable[[int, Array], Array]


def quantized_experts(
    x: Array,
    experts: Array,
    scores: Array,
    gate_up_codes: Array,
    gate_up_scales: Array,
    down_codes: Array,
    down_scales: Array,
    gate_up_bias: Array | None = None,
    down_bias: Array | None = None,
    *,
    gate_up_format: str,
    down_format: str,
    inner: int,
    hidden: int,
    alpha: float,
    beta: float,
    limit: float,
    cubic: float = 0.0,
) -> tuple[Array]:
    """Return y, float32 [N, hidden]."""

    def gate_up(expert: int, rows: Array) -> Array:
        packed = gate_up_codes[expert], gate_up_scales[expert]
        return quantized_linear(rows, *packed, format=gate_up_format, rows=2 * inner)[0]

    def down(expert: int, rows: Array) -> Array:
        return quantized_linear(rows, down_codes[expert], down_scales[expert], format=down_format, rows=hidden)[0]

    y = np.zeros((len(x), hidden), np.float32)
    terms = np.float32(alpha), np.float32(beta), np.float32(limit), np.float32(cubic)
    return (add_experts(y, x, experts, scores, len(gate_up_codes), gate_up, down, gate_up_bias, down_bias, terms),)


def add_experts(
    y: Array,
    x: Array,
    experts: Array,
    scores: Array,
    count: int,
    gate_up: Product,
    down: Product,
    gate_up_bias: Array | None,
    down_bias: Array | None,
    terms: tuple[np.float32, np.float32, np.float32, np.float32],
) -> Array:
    """Add each token's experts, of ``count``, to its row of y, in their order.

    ``terms`` are alpha, beta, limit and cubic. ``gate_up`` and ``down`` multiply rows, float32 [N, columns], by the
    matrix of an expert. The row of a token with an expert out of range is NaN.
    """
    out = np.zeros((*experts.shape, y.shape[1]), np.float32)
    for expert in range(count):
        tokens, places = np.nonzero(experts == expert)
        if not len(tokens):
            continue
        pairs = gate_up(expert, x[tokens])
        if gate_up_bias is not None:
            pairs = pairs + gate_up_bias[expert]
        found = down(expert, gate(pairs, *terms))
        out[tokens, places] = found if down_bias is None else found + down_bias[expert]
    with np.errstate(over="ignore", invalid="ignore"):
        for place in range(experts.shape[1]):
            y += scores[:, place, None] * out[:, place]
    y[((experts < 0) | (experts >= count)).any(axis=1)] = np.nan
    return y


def gate(pairs: Array, alpha: np.float32, beta: np.float32, limit: np.float32, cubic: np.float32) -> Array:
    """Return (up + beta) * gate * sigmoid(alpha * (gate + cubic * gate^3)), float32 [rows, columns / 2].

    Columns of gate and up alternate. A ``limit`` of 0 is no clamp.
    """
    gate, up = pairs[:, 0::2], pairs[:, 1::2]
    if limit:
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    with np.errstate(over="ignore", invalid="ignore"):
        cubic_gate = gate + cubic * gate * gate * gate if cubic else gate
        gated: Array = (up + beta) * (gate / (1 + _exponential(-(alpha * cubic_gate))))
    return gated


def _exponential(x: Array) -> Array:
    """Return e^x in the operations of ``exponential`` in plugins/cpu/elementary.h."""

    def fma(a: Array, b: float, c: Array | float) -> Array:
        return fused_multiply_add(a, np.full_like(a, b), np.broadcast_to(np.asarray(c, np.float32), a.shape))

    x = np.where(x < -104, np.float32(-104), x)
    x = np.where(x > 89, np.float32(89), x)
    rounder = np.float32(12582912)
    shifted = fma(x, 1.44269504088896341, float(rounder))
    integer = shifted - rounder
    rest = fma(integer, -1.42860682030941723e-6, fma(integer, -0.693145751953125, x))
    power = np.full_like(rest, np.float32(1 / 5040))
    for term in (1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0):
        power = fused_multiply_add(power, rest, np.full_like(rest, term))
    exponent = shifted.view(np.uint32) - np.uint32(0x4B400000) + np.uint32(300)
    half_exponent = exponent >> np.uint32(1)
    first, second = (
        (each - np.uint32(23) << np.uint32(23)).view(np.float32) for each in (half_exponent, exponent - half_exponent)
    )
    result: Array = power * first * second
    return result
