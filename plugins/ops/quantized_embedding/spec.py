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
    doc="""Look up rows in the matrix of a ``QuantizedLinear``, as float32 numbers.

An embedding and an LM head that are one matrix are stored once: both ops read the same codes and scales. A number is
its integer code times its scale (d times the integer scale, which is exact), plus its minimum if it has one; each step
is rounded. Ids are 0..rows - 1; the kernel refuses others.""",
    inputs=(Operand("ids", ("...",), ("int64",), "ids of the rows"), CODES, SCALES),
    outputs=(Operand("y", ("...", "columns"), ("float32",), "the rows"),),
    reference=quantized_embedding,
    body=body,
    attributes=(FORMAT, ROWS, Attribute("columns", int, -1, "columns of the matrix, 32 per block", at_least_one)),
    check_dims=check_packed,
    cpu_cases=cpu_cases,
    in_fused_regions=True,
)
