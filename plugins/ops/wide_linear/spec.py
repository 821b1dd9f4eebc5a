"""``WideLinear``: multiply rows with a packed float32 matrix, each output summed in a fixed order."""

from __future__ import annotations

from collections.abc import Mapping

from ...limits import at_least_one
from ...op_spec import Attribute, Operand, OpSpec
from .body import body
from .cpu_cases import cpu_cases
from .reference import wide_linear

MATRIX = Operand("matrix", ("tiles", "C", "lanes"), ("float32",), "the packed matrix: 16 lanes, tiles of 16 rows")
ROWS = Attribute("rows", int, -1, "rows of the matrix; the last tile is padded", at_least_one)


def check_packed(dims: Mapping[str, int]) -> str | None:
    """Return a complaint if the sizes do not fit a packed matrix."""
    if dims.get("lanes", 16) != 16:
        return f"the tiles of the matrix have {dims['lanes']} rows, not 16"
    return "the matrix has no columns" if dims.get("C", 1) < 1 else None


SPEC = OpSpec(
    name="WideLinear",
    doc="""Multiply rows by a float32 matrix: y = x @ matrix.T.

``packed_matrix.py`` describes how the matrix [rows, K] is packed. An output starts at 0 and adds one fused
multiply-add of x and the matrix for each column, in order, so the bits of y depend only on the row and the matrix. The
function body adds in another order.""",
    inputs=(Operand("x", ("...", "C"), ("float32",), "rows of K columns"), MATRIX),
    outputs=(Operand("y", ("...", "rows"), ("float32",), "one number for each row of the matrix"),),
    reference=wide_linear,
    body=body,
    attributes=(ROWS,),
    check_dims=check_packed,
    cpu_cases=cpu_cases,
    in_fused_regions=True,
)
