"""``WideEmbedding``: look up rows of a packed float32 matrix."""

from __future__ import annotations

from ...op_spec import Operand, OpSpec
from ..wide_linear.spec import MATRIX, ROWS, check_packed
from .body import body
from .cpu_cases import cpu_cases
from .reference import wide_embedding

SPEC = OpSpec(
    name="WideEmbedding",
    doc="""Look rows up in the matrix of a ``WideLinear``, as they are.

An embedding and a head that are one matrix are stored once: both ops read the same tiles. Ids are of 0..rows - 1; the
kernel refuses others.""",
    inputs=(Operand("ids", ("...",), ("int64",), "which rows"), MATRIX),
    outputs=(Operand("y", ("...", "C"), ("float32",), "the rows"),),
    reference=wide_embedding,
    body=body,
    attributes=(ROWS,),
    check_dims=check_packed,
    cpu_cases=cpu_cases,
    in_stretches=True,
)
