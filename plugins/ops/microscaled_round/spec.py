"""``MicroscaledRound``: round to MXFP8, with block scales computed at run time."""

from __future__ import annotations

from collections.abc import Mapping

from ...number_types import MX_BLOCK
from ...op_spec import FLOATS, Operand, OpSpec
from .body import body
from .reference import microscaled_round


def _check_dims(dims: Mapping[str, int]) -> str | None:
    columns = dims.get("C", MX_BLOCK)
    return f"{columns} columns are not a multiple of {MX_BLOCK}" if columns % MX_BLOCK or not columns else None


SPEC = OpSpec(
    name="MicroscaledRound",
    doc="""Round to E4M3 in blocks of 32 along the last axis, each with a power of two as its scale.

The scale is the smallest power of two, from 2**-127 up, that brings the largest number of the block to 448 or less.
Each number is divided by the scale, rounded to the nearest E4M3 number (ties to even), and multiplied by the scale.
The input must be finite; numbers that round to a value beyond their type (in float16, from 63488 on) become infinite.
Source: MXFP8 of OCP Microscaling Formats 1.0, with NVIDIA's rounding of the scale (up).""",
    inputs=(Operand("x", ("...", "C"), FLOATS, "numbers to round; C is a multiple of 32"),),
    outputs=(Operand("y", ("...", "C"), FLOATS, "the nearest MXFP8 values", same_as="x"),),
    reference=microscaled_round,
    body=body,
    check_dims=_check_dims,
)
