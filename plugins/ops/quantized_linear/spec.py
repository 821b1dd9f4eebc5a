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
FORMAT = Attribute("format", str, "", f"how the matrix is stored: {', '.join(FORMATS)}", one_of_formats)
ROWS = Attribute("rows", int, -1, "rows of the matrix; the last tile is filled up", at_least_one)


def check_packed(dims: Mapping[str, int]) -> str | None:
    """Return a complaint if the sizes do not fit a packed matrix."""
    if dims.get("blocks", 1) < 1:
        return "the matrix has no columns"
    if "C" in dims and "blocks" in dims and dims["C"] != 32 * dims["blocks"]:
        return f"x has {dims['C']} columns, the matrix {32 * dims['blocks']}: K must be a multiple of 32"
    sizes = sorted({64 * form.bits for form in PACKED_FORMATS.values()})
    if dims.get("bytes", sizes[0]) not in sizes:
        return f"a block of codes has {', '.join(map(str, sizes))} bytes, not {dims['bytes']}"
    return None


SPEC = OpSpec(
    name="QuantizedLinear",
    doc="""Multiply rows with a quantized matrix: y = round(x) @ matrix.T.

Each block of 32 numbers of x is rounded to int8: its scale is the largest magnitude / 127, codes are the nearest whole
multiples, ties to even; a block with no number of 2**-100 or more is zeros. A row with a number that is not finite
gives NaN in every output. The matrix [rows, K] is packed as ``packed_weights.py`` says.

y of a row is made block by block, in order: the sum of codes times codes (exact), made float32, times the block's scale
of the matrix if it has one, then a fused multiply-add of it with the scale of x onto what came before; a least value is
a second one, with the sum of the codes of x. The scale of a row comes last. The scale of a block of q4_k and q5_k is d
times its whole scale (exact), its least value -(dmin times its whole minimum). q6_k has a whole scale for each half of
a block: the sums of the halves are multiplied with them and added (exact), and d is the scale. So the bits of y depend
on the row and the matrix alone. The body adds in another order.""",
    inputs=(Operand("x", ("...", "C"), ("float32",), "rows of K columns, a multiple of 32"), CODES, SCALES),
    outputs=(Operand("y", ("...", "rows"), ("float32",), "a number for every row of the matrix"),),
    reference=quantized_linear,
    body=body,
    attributes=(FORMAT, ROWS),
    check_dims=check_packed,
    cpu_cases=cpu_cases,
    in_stretches=True,
)
