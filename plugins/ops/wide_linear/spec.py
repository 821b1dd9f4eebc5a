"""``WideLinear``: multiply rows with a packed float32 matrix, each output summed in a fixed order."""

from __future__ import annotations

from collections.abc import Mapping

from ...limits import at_least_one
from ...op_spec import Attribute, Operand, OpSpec
from .body import body
from .cpu_cases import cpu_cases
from .reference import wide_linear

MATRIX = Operand("matrix", ("tiles", "C", "lanes"), ("float32",), "the packed matrix: 16 lanes, tiles of 16 rows")
ROWS = Attribute("rows", int, -1, "rows of the matrix; the last tile is filled up", at_least_one)


def check_packed(dims: Mapping[str, int]) -> str | None:
    """Return a complaint if the sizes do not fit a packed matrix."""
    if dims.get("lanes", 16) != 16:
        return f"the tiles of the matrix have {dims['lanes']} rows, not 16"
    return "the matrix has no columns" if dims.get("C", 1) < 1 else None


SPEC = OpSpec(
    name="WideLinear",
    doc="""Multiply rows with a matrix of float32: y = x @ matrix.T.

The matrix [rows, K] is packed as ``packed_matrix.py`` says. An output is 0, and then for each column, in order, a fused
multiply-add of x and the matrix onto what came before. So the bits of y depend on the row and the matrix alone. The
body adds in another order.""",
    inputs=(Operand("x", ("...", "C"), ("float32",), "rows of K columns"), MATRIX),
    outputs=(Operand("y", ("...", "rows"), ("float32",), "a number for every row of the matrix"),),
    reference=wide_linear,
    body=body,
    attributes=(ROWS,),
    check_dims=check_packed,
    cpu_cases=cpu_cases,
    in_stretches=True,
)
