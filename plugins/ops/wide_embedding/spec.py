"""``WideEmbedding``: look up rows of a packed float32 matrix."""

from __future__ import annotations

from ...op_spec import Operand, OpSpec
from ..wide_linear.spec import MATRIX, ROWS, check_packed
from .body import body
from .cpu_cases import cpu_cases
from .reference import wide_embedding

SPEC = OpSpec(
    name="WideEmbedding",
    doc="""Look up rows in the matrix of a ``WideLinear``, unchanged.

An embedding and an LM head that are one matrix are stored once: both ops read the same tiles. Ids are 0..rows - 1; the
kernel refuses others.""",
    inputs=(Operand("ids", ("...",), ("int64",), "ids of the rows"), MATRIX),
    outputs=(Operand("y", ("...", "C"), ("float32",), "the rows"),),
    reference=wide_embedding,
    body=body,
    attributes=(ROWS,),
    check_dims=check_packed,
    cpu_cases=cpu_cases,
    in_fused_regions=True,
)
