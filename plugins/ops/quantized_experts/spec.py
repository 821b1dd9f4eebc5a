"""``QuantizedExperts``: the routed experts of ``SparseExperts``, over packed matrices and inputs rounded to int8."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...limits import at_least_one
from ...op_spec import Attribute, Operand, OpSpec
from ..quantized_linear.spec import CODES, FORMAT, SCALES, check_packed
from ..sparse_experts.spec import GATE
from .body import body
from .cpu_cases import cpu_cases
from .reference import quantized_experts


def _codes(name: str, doc: str) -> Operand:
    return Operand(f"{name}_codes", ("E", f"{name}_tiles", f"{name}_blocks", f"{name}_bytes"), CODES.dtypes, doc)


def _scales(name: str) -> Operand:
    dims = ("E", f"{name}_tiles", f"{name}_scaled_blocks", f"{name}_numbers")
    return Operand(f"{name}_scales", dims, SCALES.dtypes, f"packed scales of {name}")


def _check_dims(dims: Mapping[str, int]) -> str | None:
    """Return a complaint if the stacks do not fit the tokens, or each other."""
    for name, columns in (("gate_up", "H"), ("down", "")):
        own = {key.removeprefix(f"{name}_"): size for key, size in dims.items() if key.startswith(f"{name}_")}
        if problem := check_packed(own | ({"C": dims[columns]} if columns in dims else {})):
            return f"{name}: {problem}"
    if dims.get("A", 0) > dims.get("E", dims.get("A", 0)):
        return f"a token cannot have {dims['A']} different experts of {dims['E']}"
    return None


SPEC = OpSpec(
    name="QuantizedExperts",
    doc="""Sum score * down(SwiGLU(gate_up(x))) over a token's A experts, as ``SparseExperts`` defines it.

Each matrix of a stack is packed separately, as ``quantized_linear/packed_weights.py`` describes; the two stacks may
have different formats. Both products are computed as in ``QuantizedLinear``: x and the output of the gate are rounded
to int8 in blocks of 32. The experts of a token are added in their order in ``experts``, in float32, so a row of y
depends only on its own row of x, experts and scores. A row with an expert that does not exist is NaN.""",
    inputs=(
        Operand("x", ("N", "H"), ("float32",), "tokens; H is a multiple of 32"),
        Operand("experts", ("N", "A"), ("int64",), "ids of the experts of each token, 0..E-1, distinct"),
        Operand("scores", ("N", "A"), ("float32",), "weight of each expert"),
        _codes("gate_up", "packed codes of 2 * inner rows per expert, gate and up alternating"),
        _scales("gate_up"),
        _codes("down", "packed codes of ``hidden`` rows per expert, of ``inner`` columns"),
        _scales("down"),
        Operand(
            "gate_up_bias",
            ("E", "J"),
            ("float32",),
            "added to the products, in the row order of gate_up",
            optional=True,
        ),
        Operand("down_bias", ("E", "D"), ("float32",), "added to each expert's output", optional=True),
    ),
    outputs=(Operand("y", ("N", "hidden"), ("float32",), "sums over the experts of each token"),),
    reference=quantized_experts,
    body=body,
    attributes=(
        replace(FORMAT, name="gate_up_format"),
        replace(FORMAT, name="down_format"),
        Attribute("inner", int, -1, "columns of down; gate_up has twice as many rows", at_least_one),
        Attribute("hidden", int, -1, "rows of down", at_least_one),
        *GATE,
    ),
    check_dims=_check_dims,
    cpu_cases=cpu_cases,
    in_fused_regions=True,
)
