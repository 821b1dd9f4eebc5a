"""``Mxfp4Down``: the second product of routed experts over MXFP4 blocks, and the sum over a token's experts."""

from __future__ import annotations

from ...op_spec import FLOATS, Kernel, Operand, OpSpec
from ..mxfp4_gate_up.spec import CODES, EXPONENTS, bounds_of_blocks
from .body import body
from .reference import mxfp4_down

SPEC = OpSpec(
    name="Mxfp4Down",
    doc="""Sum score * down(inner) over a token's A experts, after ``Mxfp4GateUp``.

Products are computed as in ``Mxfp4GateUp``. The experts of a token are added in their order in ``experts``, in
float32, and the sum is rounded once to the type of the scores. A row with an expert that does not exist is NaN.""",
    inputs=(
        Operand("inner", ("N", "A", "I"), ("float32",), "gated rows of each token's experts"),
        Operand("experts", ("N", "A"), ("int64",), "ids of the experts of each token, 0..E-1"),
        Operand("scores", ("N", "A"), FLOATS, "weight of each expert"),
        Operand("codes", ("E", "H", "blocks", "bytes"), CODES, "MXFP4 codes of the matrices"),
        Operand("exponents", ("E", "H", "blocks"), EXPONENTS, "exponents + 127 of the blocks, as bytes"),
        Operand("bias", ("E", "H"), FLOATS, "added to each expert's output", same_as="scores"),
    ),
    outputs=(Operand("y", ("N", "H"), FLOATS, "sums over the experts of each token", same_as="scores"),),
    reference=mxfp4_down,
    body=body,
    bounds=bounds_of_blocks("I"),
    kernel=Kernel(
        entry="mxfp4_down",
        blocks="H",
        threads=128,
        scalars=("N", "A", "I", "E", "H"),
        typed_by="scores",
        headers=("routed_mxfp4.cuh",),
    ),
)
