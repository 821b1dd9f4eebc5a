"""``SparseExperts``: compute the routed experts of a mixture-of-experts layer, after the router has chosen."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...limits import finite, not_negative
from ...op_spec import FLOATS, Attribute, Operand, OpSpec
from .body import CODES, body
from .reference import sparse_experts


def _codes(value: str) -> str | None:
    return None if value == "" or value in CODES else f"must be empty or one of {', '.join(CODES)}"


def _positive(value: float) -> str | None:
    return None if math.isfinite(value) and value > 0 else "must be finite and more than 0"


def _check_dims(dims: Mapping[str, int]) -> str | None:
    if {"J", "I"} <= dims.keys() and dims["J"] != 2 * dims["I"]:
        return f"gate_up has {dims['J']} rows per expert, not twice the {dims['I']} columns of down"
    if dims.get("A", 0) > dims.get("E", dims.get("A", 0)):
        return f"a token cannot have {dims['A']} different experts of {dims['E']}"
    return None


ALPHA = Attribute("alpha", float, 1.0, "steepness of the gate's sigmoid", finite)
BETA = Attribute("beta", float, 0.0, "added to up", finite)
LIMIT = Attribute("limit", float, 0.0, "clamps gate and up; 0 disables the clamp", not_negative)
CUBIC = Attribute("cubic", float, 0.0, "factor of gate^3, which is added to gate in the sigmoid", not_negative)
GATE = (ALPHA, BETA, LIMIT, CUBIC)
"""The attributes of the gate."""
CLAMPED = {"alpha": 1.702, "beta": 1.0, "limit": 7.0, "cubic": 0.0}
"""Their values for GPT-OSS."""
GELU = {"alpha": math.sqrt(8 / math.pi), "beta": 0.0, "limit": 0.0, "cubic": 0.044715}
"""Their values for GELU in its tanh form: 0.5 * (1 + tanh(z)) is sigmoid(2 * z)."""

SPEC = OpSpec(
    name="SparseExperts",
    doc="""Sum score * down(SwiGLU(gate_up(x))) over a token's A experts.

Rows of ``gate_up`` alternate: gate, up, gate, up. With gate and up of one expert, inner = (up + beta) * gate *
sigmoid(alpha * (gate + cubic * gate^3)); a positive ``limit`` first clamps gate to at most limit and up to
-limit..limit. alpha 1 and beta 0 are plain SiLU gating (Qwen3-MoE); GPT-OSS has alpha 1.702, beta 1 and limit 7;
alpha sqrt(8 / pi) and cubic 0.044715 are GELU in its tanh form (Gemma-4). The experts of a token are distinct; their
scores need not sum to 1, and are positive if cubic is 0. Either both biases are given, or neither.

With ``inner_codes``, inner is rounded to such codes times ``inner_scale`` before down, as the input of a linear is
rounded in a quantized graph. x can be rounded outside of the op, but inner cannot.

Source: Qwen3MoeExperts, GptOssExperts and Gemma4TextExperts of transformers; row order and SwiGLU terms of
com.microsoft.MoE.""",
    inputs=(
        Operand("x", ("N", "H"), FLOATS, "tokens"),
        Operand("experts", ("N", "A"), ("int64",), "ids of the experts of each token, 0..E-1, distinct"),
        Operand("scores", ("N", "A"), FLOATS, "weight of each expert", same_as="x"),
        Operand("gate_up", ("E", "J", "H"), FLOATS, "matrices of J = 2 I rows, gate and up alternating", same_as="x"),
        Operand("down", ("E", "H", "I"), FLOATS, "matrices back to the hidden size", same_as="x"),
        Operand(
            "gate_up_bias",
            ("E", "J"),
            FLOATS,
            "added to the products, in the row order of gate_up",
            optional=True,
            same_as="x",
        ),
        Operand("down_bias", ("E", "H"), FLOATS, "added to each expert's output", optional=True, same_as="x"),
    ),
    outputs=(Operand("y", ("N", "H"), FLOATS, "sums over the experts of each token", same_as="x"),),
    reference=sparse_experts,
    body=body,
    attributes=(
        *GATE,
        Attribute(
            "inner_codes",
            str,
            "",
            "type that inner is rounded to: float8_e4m3fn or int8; empty to keep it unrounded",
            _codes,
        ),
        Attribute("inner_scale", float, 1.0, "factor of the codes of inner", _positive),
    ),
    check_dims=_check_dims,
)
