"""``Mxfp4GateUp``: the first product of routed experts, and their gating, over MXFP4 blocks."""

from __future__ import annotations

from ...limits import Bound
from ...number_types import MX_BLOCK
from ...op_spec import FLOATS, Kernel, Operand, OpSpec
from .blocks import BYTES, MAX_CHOICES
from .body import body
from .reference import mxfp4_gate_up

CODES, EXPONENTS = ("int8",), ("int8",)
_MAX = 2**31 - 1  # of a product of sizes that the kernel computes in 32 bits


def bounds_of_blocks(columns: str) -> tuple[Bound, ...]:
    """Return the bounds of a stack of blocks whose rows have as many ``columns`` as that dimension."""
    return (
        Bound(("bytes",), f"a block has {BYTES} bytes of codes, not {{bytes}}", minimum=BYTES, maximum=BYTES),
        Bound(
            ("blocks",),
            f"{{blocks}} blocks of {MX_BLOCK} do not have the {{{columns}}} columns of the other factor",
            minimum=columns,
            maximum=columns,
            times=MX_BLOCK,
        ),
        Bound(("A",), f"{{A}} experts per token are not 1 to {MAX_CHOICES}", minimum=1, maximum=MAX_CHOICES),
    )


SPEC = OpSpec(
    name="Mxfp4GateUp",
    doc="""Compute the gated inner rows of each token's A experts: SwiGLU(gate_up(x)), as ``SparseExperts`` defines it.

Matrices are stacks of MXFP4 blocks as GPT-OSS checkpoints store them: rows alternate (gate, up), a byte has the codes
of two columns, the lower half first, and 32 columns share a power of two. Products are sums in float32, in an order
that depends only on the number of columns, so a row of inner depends only on its own row of x and on its expert. Only
experts that a token has chosen are read, once for all of their tokens. An infinite ``limit`` does not clamp. The row
of an expert that does not exist is NaN.""",
    inputs=(
        Operand("x", ("N", "H"), FLOATS, "tokens"),
        Operand("experts", ("N", "A"), ("int64",), "ids of the experts of each token, 0..E-1"),
        Operand("codes", ("E", "I", "pair", "blocks", "bytes"), CODES, "codes of gate and up of every inner column"),
        Operand("exponents", ("E", "I", "pair", "blocks"), EXPONENTS, "exponents + 127 of the blocks, as bytes"),
        Operand("bias", ("E", "J"), FLOATS, "added to the products; J = 2 I, gate and up alternating", same_as="x"),
        Operand("alpha", (), ("float32",), "steepness of the gate's sigmoid"),
        Operand("beta", (), ("float32",), "added to up"),
        Operand("limit", (), ("float32",), "clamps gate from above and up from both sides; positive"),
    ),
    outputs=(Operand("inner", ("N", "A", "I"), ("float32",), "gated rows"),),
    reference=mxfp4_gate_up,
    body=body,
    bounds=(
        *bounds_of_blocks("H"),
        Bound(("pair",), "an inner column has two rows, gate and up, not {pair}", minimum=2, maximum=2),
        Bound(
            ("I",),
            "bias has {J} numbers per expert, not two for each of {I} columns",
            minimum="J",
            maximum="J",
            times=2,
        ),
        Bound(("I",), "{I} inner columns exceed the limit of one launch", maximum=_MAX // MAX_CHOICES),
    ),
    kernel=Kernel(
        entry="mxfp4_gate_up",
        blocks="I",
        threads=128,
        scalars=("N", "H", "A", "E", "I"),
        typed_by="x",
        headers=("routed_mxfp4.cuh",),
    ),
)
