"""``QuantizedEmbedding``: look up rows of a packed matrix and dequantize them."""

from __future__ import annotations

from ...limits import at_least_one
from ...op_spec import Attribute, Operand, OpSpec
from ..quantized_linear.spec import CODES, FORMAT, ROWS, SCALES, check_packed
from .body import body
from .cpu_cases import cpu_cases
from .reference import quantized_embedding

SPEC = OpSpec(
    name="QuantizedEmbedding",
    doc="""Look rows up in the matrix of a ``QuantizedLinear``, as numbers of float32.

An embedding and a head that are one matrix are stored once: both ops read the same codes and scales. A number is its
whole code times its scale (d times the whole scale, which is exact), and then plus its least value if there is one,
each rounded. Ids are of 0..rows - 1; the
kernel refuses others.""",
    inputs=(Operand("ids", ("...",), ("int64",), "which rows"), CODES, SCALES),
    outputs=(Operand("y", ("...", "columns"), ("float32",), "the rows"),),
    reference=quantized_embedding,
    body=body,
    attributes=(FORMAT, ROWS, Attribute("columns", int, -1, "columns of the matrix: 32 a block", at_least_one)),
    check_dims=check_packed,
    cpu_cases=cpu_cases,
    in_stretches=True,
)
