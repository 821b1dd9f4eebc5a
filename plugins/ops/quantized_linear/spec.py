"""``QuantizedLinear``: multiply rows, rounded to int8 per block, with a packed matrix of 4 to 8 bits."""

from __future__ import annotations

from collections.abc import Mapping

from ...limits import at_least_one
from ...op_spec import Attribute, Operand, OpSpec
from .body import body
from .cpu_cases import cpu_cases
from .packed_formats import PACKED_FORMATS
from .packed_weights import FORMATS, one_of_formats
from .reference import quantized_linear

CODES = Operand("codes", ("tiles", "blocks", "bytes"), ("uint8",), "packed codes of the matrix")
SCALES = Operand(
    "scales",
    ("tiles", "scaled_blocks", "numbers"),
    ("float16", "float32", "uint8"),
    "packed scales, of the type that belongs to the format",
)
FORMAT = Attribute("format", str, "", f"storage of the matrix: {', '.join(FORMATS)}", one_of_formats)
ROWS = Attribute("rows", int, -1, "rows of the matrix; the last tile is padded", at_least_one)


def check_packed(dims: Mapping[str, int]) -> str | None:
    """Return a complaint if the sizes do not fit a packed matrix."""
    if dims.get("blocks", 1) < 1:
        return "the matrix has no columns"
    if "C" in dims and "blocks" in dims and dims["C"] != 32 * dims["blocks"]:
        return f"x has {dims['C']} columns, but the matrix has {32 * dims['blocks']}: K must be a multiple of 32"
    sizes = sorted({64 * packed_format.bits for packed_format in PACKED_FORMATS.values()})
    if dims.get("bytes", sizes[0]) not in sizes:
        return f"a block of codes has {', '.join(map(str, sizes))} bytes, not {dims['bytes']}"
    return None


SPEC = OpSpec(
    name="QuantizedLinear",
    doc="""Multiply rows by a quantized matrix: y = round(x) @ matrix.T.

Each block of 32 numbers of x is rounded to int8: the scale is the largest magnitude / 127, and codes are the nearest
integer multiples, ties to even. A block without a number of 2**-100 or more is rounded to zeros. A row with a number
that is not finite gives NaN in every output. ``packed_weights.py`` describes how the matrix [rows, K] is packed.

y of a row is computed block by block, in order. The sum of codes times codes (exact) is converted to float32 and
multiplied by the matrix's scale of the block, if there is one; a fused multiply-add with the scale of x then adds the
product to the previous sum. If the block has a minimum, a second fused multiply-add adds the minimum times the sum of
the codes of x. The scale of a row is applied last. In q4_k and q5_k, the scale of a block is d times its integer scale
(exact), and its minimum is -(dmin times its integer minimum). In q6_k, each half of a block has an integer scale: the
sums of the halves are multiplied by these scales and added (exact), and d is the scale. The bits of y therefore depend
only on the row and the matrix. The function body adds in another order.""",
    inputs=(Operand("x", ("...", "C"), ("float32",), "rows of K columns, a multiple of 32"), CODES, SCALES),
    outputs=(Operand("y", ("...", "rows"), ("float32",), "one number for each row of the matrix"),),
    reference=quantized_linear,
    body=body,
    attributes=(FORMAT, ROWS),
    check_dims=check_packed,
    cpu_cases=cpu_cases,
    in_fused_regions=True,
)
