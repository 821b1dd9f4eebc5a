"""``WideExperts``: the routed experts of ``SparseExperts``, over packed float32 matrices, summed in a fixed order."""

from __future__ import annotations

from collections.abc import Mapping

from ...limits import at_least_one
from ...op_spec import Attribute, Operand, OpSpec
from ..sparse_experts.spec import GATE
from .body import body
from .cpu_cases import cpu_cases
from .reference import wide_experts


def _stack(name: str, columns: str, doc: str) -> Operand:
    return Operand(name, ("E", f"{name}_tiles", columns, "lanes"), ("float32",), doc)


def _check_dims(dims: Mapping[str, int]) -> str | None:
    """Return a complaint if the stacks are not packed, or have fewer experts than a token."""
    if dims.get("lanes", 16) != 16:
        return f"the tiles of the stacks have {dims['lanes']} rows, not 16"
    if dims.get("A", 0) > dims.get("E", dims.get("A", 0)):
        return f"a token cannot have {dims['A']} different experts of {dims['E']}"
    return None


SPEC = OpSpec(
    name="WideExperts",
    doc="""Sum score * down(SwiGLU(gate_up(x))) over a token's A experts, as ``SparseExperts`` defines it.

Each matrix of a stack is packed separately, as ``wide_linear/packed_matrix.py`` describes. Both products are computed
as in ``WideLinear``. The experts of a token are added in their order in ``experts``, in float32, so a row of y depends
only on its own row of x, experts and scores. A row with an expert that does not exist is NaN.""",
    inputs=(
        Operand("x", ("N", "H"), ("float32",), "tokens"),
        Operand("experts", ("N", "A"), ("int64",), "ids of the experts of each token, 0..E-1, distinct"),
        Operand("scores", ("N", "A"), ("float32",), "weight of each expert"),
        _stack("gate_up", "H", "packed matrices of 2 * inner rows, gate and up alternating"),
        _stack("down", "I", "packed matrices of ``hidden`` rows"),
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
    reference=wide_experts,
    body=body,
    attributes=(
        Attribute("inner", int, -1, "columns of down; gate_up has twice as many rows", at_least_one),
        Attribute("hidden", int, -1, "rows of down", at_least_one),
        *GATE,
    ),
    check_dims=_check_dims,
    cpu_cases=cpu_cases,
    in_fused_regions=True,
)
