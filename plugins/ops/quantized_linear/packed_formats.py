"""The formats of packed matrices: a record for each. ``plugins/cpu/matrices/packed_formats.h`` has the same records.

Everything that differs between formats is in the record: all other code reads it.
"""

from __future__ import annotations

from dataclasses import dataclass

from .gguf_blocks import (
    Array,
    Reader,
    first_byte,
    five_bits_from,
    int8_codes,
    k_scales,
    leading_half,
    leading_halves,
    nibbles_from,
    q4_k_codes,
    q5_k_codes,
    q6_k_codes,
    q6_k_scales,
)
from .scale_layouts import (
    BLOCK,
    BlockScales,
    BlockScalesAndMin,
    Exponents,
    HalfBlockSteps,
    RowScales,
    StepsAndMin,
)

_IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_MXFP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # doubled; the scale is halved


@dataclass(frozen=True)
class GgufBlocks:
    """The blocks of a GGUF file that have the format: their size, and readers of codes and scales.

    ``halves`` and ``exponents`` are the bytes at which float16 numbers and E8M0 exponents begin.
    """

    size: int
    codes: Reader
    scales: Reader
    halves: tuple[int, ...] = (0,)
    exponents: tuple[int, ...] = ()


@dataclass(frozen=True)
class PackedFormat:
    """Storage of a matrix: ``bits`` of a code, what a code stands for, and the layout of ``scales``.

    A code stands for ``code - middle``, or, if there are ``values``, for the value that it selects. Codes of eight bits
    come as int8 and are stored with an offset of 128.
    """

    name: str
    bits: int
    scales: RowScales
    middle: int = 0
    values: tuple[int, ...] = ()
    gguf: GgufBlocks | None = None

    @property
    def columns_multiple(self) -> int:
        """The number that the columns of a matrix must be a multiple of."""
        return self.scales.columns or BLOCK

    @property
    def upper_bits(self) -> int:
        """The bits of a code above the first four, if it has fewer than eight; also their vectors of 64 bytes."""
        return self.bits - 4 if self.bits < 8 else 0

    def upper_place(self, group: int) -> tuple[int, int]:
        """Return where a group of columns has its upper bits: vector and position of the lowest bit in a byte.

        Groups whose lower bits are the low halves of bytes have them in the high half, and the other way round: so
        that a vector, shifted once for two groups, has those of the first in place, above its four bits.
        """
        together = 4 // self.upper_bits  # pairs of groups in a vector
        pair = group % 4
        return pair // together, self.upper_bits * (pair % together) + (4 if group < 4 else 0)


_ROW, _BLOCK, _MIN = RowScales(), BlockScales(), BlockScalesAndMin()

PACKED_FORMATS = {
    each.name: each
    for each in (
        PackedFormat("int8", 8, _ROW, middle=128),
        PackedFormat("q8_0", 8, _BLOCK, middle=128, gguf=GgufBlocks(34, int8_codes, leading_half)),
        PackedFormat("q4_0", 4, _BLOCK, middle=8, gguf=GgufBlocks(18, nibbles_from(2), leading_half)),
        PackedFormat("q4_1", 4, _MIN, gguf=GgufBlocks(20, nibbles_from(4), leading_halves, (0, 2))),
        PackedFormat("q5_0", 5, _BLOCK, middle=16, gguf=GgufBlocks(22, five_bits_from(2), leading_half)),
        PackedFormat("q5_1", 5, _MIN, gguf=GgufBlocks(24, five_bits_from(4), leading_halves, (0, 2))),
        PackedFormat("q4_k", 4, StepsAndMin(), gguf=GgufBlocks(144, q4_k_codes, k_scales, (0, 2))),
        PackedFormat("q5_k", 5, StepsAndMin(), gguf=GgufBlocks(176, q5_k_codes, k_scales, (0, 2))),
        PackedFormat("q6_k", 6, HalfBlockSteps(), middle=32, gguf=GgufBlocks(210, q6_k_codes, q6_k_scales, (208,))),
        PackedFormat("iq4_nl", 4, _BLOCK, values=_IQ4_NL, gguf=GgufBlocks(18, nibbles_from(2), leading_half)),
        PackedFormat(
            "mxfp4", 4, Exponents(), values=_MXFP4, gguf=GgufBlocks(17, nibbles_from(1), first_byte, (), (0,))
        ),
    )
}

__all__ = ["PACKED_FORMATS", "Array", "GgufBlocks", "PackedFormat"]
