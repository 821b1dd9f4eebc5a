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
LIMIT = Attribute("limit", float, 0.0, "clamps gate and up; 0 is no clamp", not_negative)

SPEC = OpSpec(
    name="SparseExperts",
    doc="""The sum over a token's A experts of score * down(SwiGLU(gate_up(x))).

Rows of ``gate_up`` alternate: gate, up, gate, up. With gate and up of one expert, inner = (up + beta) * gate *
sigmoid(alpha * gate); a positive ``limit`` first clamps gate to at most limit and up to -limit..limit. alpha 1, beta 0
is plain SiLU gating (Qwen3-MoE); GPT-OSS has alpha 1.702, beta 1, limit 7. The experts of a token are different ones;
their scores are positive and need not sum to 1. Both biases are there, or none.

With ``inner_codes`` inner is rounded to such codes times ``inner_scale`` before down, as the input of a linear is
rounded before it in a quantized graph: x can be so outside of the op, inner cannot.

Source: Qwen3MoeExperts and GptOssExperts of transformers; row order and SwiGLU terms of com.microsoft.MoE.""",
    inputs=(
        Operand("x", ("N", "H"), FLOATS, "tokens"),
        Operand("experts", ("N", "A"), ("int64",), "ids of the experts of each token, 0..E-1, distinct"),
        Operand("scores", ("N", "A"), FLOATS, "weight of each of them", same_as="x"),
        Operand("gate_up", ("E", "J", "H"), FLOATS, "J = 2 I rows, gate and up alternating", same_as="x"),
        Operand("down", ("E", "H", "I"), FLOATS, "back to the hidden size", same_as="x"),
        Operand("gate_up_bias", ("E", "J"), FLOATS, "in the row order of gate_up", optional=True, same_as="x"),
        Operand("down_bias", ("E", "H"), FLOATS, "added to each expert's output", optional=True, same_as="x"),
    ),
    outputs=(Operand("y", ("N", "H"), FLOATS, "tokens after their experts", same_as="x"),),
    reference=sparse_experts,
    body=body,
    attributes=(
        ALPHA,
        BETA,
        LIMIT,
        Attribute("inner_codes", str, "", "type that inner is rounded to: float8_e4m3fn, int8; empty for none", _codes),
        Attribute("inner_scale", float, 1.0, "what codes of inner are multiplied with", _positive),
    ),
    check_dims=_check_dims,
)
