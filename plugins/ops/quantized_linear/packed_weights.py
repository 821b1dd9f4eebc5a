"""Weight matrices packed for the CPU kernels to read in place, from codes or from GGUF blocks.

A matrix [N, K] is divided into tiles of 16 rows (the last is padded with zeros), and a tile into blocks of 32 columns.
The codes of a block are stored in groups of four columns; each group stores its 16 rows consecutively.

========== ==================================== =======================================================================
format     scales                               value of a number
========== ==================================== =======================================================================
``int8``   float32 [tiles, 1, 16]               code * scale of the row; codes -128..127
``q8_0``   float16 [tiles, blocks, 16]          code * scale of the block; codes -128..127
``q4_0``   float16 [tiles, blocks, 16]          (code - 8) * scale; codes 0..15
``q4_1``   float16 [tiles, blocks, 32]          code * scale + minimum; 16 scales, then the tile's 16 minimums
``q5_0``   float16 [tiles, blocks, 16]          (code - 16) * scale; codes 0..31
``q5_1``   float16 [tiles, blocks, 32]          code * scale + minimum; codes 0..31
``q4_k``   uint8 [tiles, superblocks, 320]      code * (d * scale) - dmin * minimum; codes 0..15
``q5_k``   uint8 [tiles, superblocks, 320]      the same; codes 0..31
``q6_k``   uint8 [tiles, superblocks, 288]      (code - 32) * (d * scale), a scale for 16 columns; codes 0..63
``iq4_nl`` float16 [tiles, blocks, 16]          values[code] * scale; codes 0..15
``mxfp4``  uint8 [tiles, blocks, 16]            values[code] * half the power of two; codes 0..15
========== ==================================== =======================================================================

Codes are uint8 [tiles, blocks, 64 * bits]. Eight bits are stored with an offset of 128. Fewer are 256 bytes with four
bits of each code, where the low half of a byte holds columns 0..15 and the high half columns 16..31, then 64 bytes
with the fifth bits or 128 bytes with the fifth and sixth (``PackedFormat.upper_place``). A superblock has 256 columns;
``scale_layouts.py`` describes its bytes. Source of all but int8: the blocks of ggml, whose scales and codes are moved
bit by bit; scales of six bits become bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...errors import REPORT, BuildError
from .packed_formats import PACKED_FORMATS, Array, GgufBlocks, PackedFormat
from .scale_layouts import BLOCK, TILE, tiled

__all__ = [
    "BLOCK",
    "FORMATS",
    "TILE",
    "Array",
    "Unpacked",
    "code_shape",
    "columns_multiple",
    "gguf_codes",
    "gguf_scales",
    "one_of_formats",
    "pack_codes",
    "pack_gguf",
    "pack_scales",
    "row_scale_shape",
    "scale_dtype",
    "scale_shape",
    "tiled",
    "unpack",
    "unpacked",
]

FORMATS = tuple(PACKED_FORMATS)
_GROUP = 4
_GROUPS = BLOCK // _GROUP
_OFFSET = 128  # of stored 8-bit codes


class Unpacked(NamedTuple):
    """The parts of an unpacked matrix: a number is whole * (factor * step), plus the least value if there is one."""

    codes: Array  # int32 [rows, blocks, 32]
    steps: Array  # int32 [rows, blocks, 1 or 2]: of a block or of its halves
    factors: Array  # float32 [rows, blocks]
    minimums: Array | None  # float32 [rows, blocks]


def one_of_formats(name: str) -> str | None:
    """Return a complaint if the format is unknown."""
    return None if name in FORMATS else f"must be one of {', '.join(FORMATS)}"


def columns_multiple(name: str) -> int:
    """Return what the columns of a matrix must be a multiple of: 32 or 256."""
    return PACKED_FORMATS[name].columns_multiple


def code_shape(name: str, rows: int, columns: int) -> tuple[int, int, int]:
    """Return the shape of the packed codes of a matrix [rows, columns]."""
    return -(-rows // TILE), columns // BLOCK, TILE * BLOCK * PACKED_FORMATS[name].bits // 8


def scale_shape(name: str, rows: int, columns: int) -> tuple[int, int, int]:
    """Return the shape of its packed scales."""
    scales = PACKED_FORMATS[name].scales
    return -(-rows // TILE), scales.units(columns), scales.tile_numbers


def scale_dtype(name: str) -> str:
    """Return the type of its scales, packed or not: float32, float16 or uint8."""
    return PACKED_FORMATS[name].scales.dtype


def row_scale_shape(name: str, columns: int) -> tuple[int, ...]:
    """Return the shape of the scales of one row, as ``pack_scales`` takes them."""
    scales = PACKED_FORMATS[name].scales
    return scales.units(columns), *scales.entry


def pack_codes(name: str, codes: Array) -> Array:
    """Pack whole codes [N, K]: int8 in -128..127, or codes of fewer bits, from 0 on, in any integer type.

    Raises ``BuildError`` for columns that are not whole blocks.
    """
    packed_format = PACKED_FORMATS[name]
    if codes.shape[-1] % packed_format.columns_multiple or not codes.size:
        raise BuildError(
            f"{codes.shape[-1]} columns are not a multiple of the block size, {packed_format.columns_multiple}",
            why=f"a matrix of {name} is stored in whole blocks",
            fix="leave this matrix unquantized (--exclude)",
        )
    unsigned = codes.view(np.uint8) ^ _OFFSET if packed_format.bits == 8 else codes.astype(np.uint8, copy=False)
    blocks = unsigned.reshape(len(unsigned), -1, BLOCK)
    return _grouped(blocks if packed_format.bits == 8 else _planes(packed_format, blocks))


def pack_scales(name: str, scales: Array, weight: str = "a matrix") -> Array:
    """Pack scales of rows, [N, *row_scale_shape]; ``weight`` is the name of their matrix, for errors.

    Raises ``BuildError`` for scales that are not finite in their stored type.
    """
    layout = PACKED_FORMATS[name].scales
    with np.errstate(over="ignore"):
        stored = scales.astype(layout.dtype)
    if not layout.is_finite(scales):
        raise BuildError(
            f"{weight} has a scale that is NaN or infinite",
            why="products with this matrix would contain NaN or infinite values",
            fix="download the checkpoint again; if the error persists, the checkpoint itself is broken",
        )
    if not layout.is_finite(stored):
        raise BuildError(
            f"{weight} has a scale that is too large for its type, {layout.dtype}",
            why=f"{name} stores its scales as {layout.dtype}",
            fix="leave this matrix unquantized (--exclude)",
        )
    return layout.pack(stored)


def pack_gguf(name: str, rows: Array) -> tuple[Array, Array]:
    """Pack rows of GGUF blocks, uint8 [N, bytes] as stored in the file; return codes and scales.

    Raises ``BuildError`` for rows that are not whole blocks, and for scales that are not finite.
    """
    return pack_codes(name, gguf_codes(name, rows)), pack_scales(name, gguf_scales(name, rows))


def gguf_codes(name: str, rows: Array) -> Array:
    """Return the whole codes of rows of GGUF blocks, [N, K], as ``pack_codes`` takes them."""
    kind, blocks = _gguf_blocks(name, rows)
    return kind.codes(blocks).reshape(len(rows), -1)


def gguf_scales(name: str, rows: Array) -> Array:
    """Return their scales, [N, *row_scale_shape], as ``pack_scales`` takes them."""
    kind, blocks = _gguf_blocks(name, rows)
    return kind.scales(blocks)


def unpack(name: str, codes: Array, scales: Array, rows: int) -> Array:
    """Return the matrix float32 [rows, K] of packed codes and scales: products, then sums, in float32."""
    integers, steps, factors, minimums = unpacked(name, codes, scales, rows)
    values = integers.reshape(*steps.shape, -1).astype(np.float32)
    scaled = values * (factors[..., None] * steps.astype(np.float32))[..., None]
    matrix: Array = scaled.reshape(integers.shape)
    return (matrix if minimums is None else matrix + minimums[..., None]).reshape(rows, -1)


def unpacked(name: str, codes: Array, scales: Array, rows: int) -> Unpacked:
    """Return the parts of the matrix, for every block of a row."""
    packed_format = PACKED_FORMATS[name]
    stored = codes if packed_format.bits == 8 else _from_planes(packed_format, codes)
    tiles, blocks, _ = codes.shape
    grouped = stored.reshape(tiles, blocks, _GROUPS, TILE, _GROUP)
    by_row = grouped.transpose(0, 3, 1, 2, 4).reshape(tiles * TILE, blocks, BLOCK)[:rows]
    integers = (
        np.array(packed_format.values, np.int32)[by_row]
        if packed_format.values
        else by_row.astype(np.int32) - packed_format.middle
    )
    factors, steps, minimums = packed_format.scales.meaning(packed_format.scales.unpack(scales)[:rows])
    wide = (rows, blocks)
    return Unpacked(
        integers,
        np.broadcast_to(steps, (*wide, steps.shape[-1])),
        np.broadcast_to(factors, wide),
        None if minimums is None else np.broadcast_to(minimums, wide),
    )


def _grouped(rows: Array) -> Array:
    """Return the bytes of blocks, uint8 [N, blocks, 4 n], as [tiles, blocks, 64 n]: by fours, the rows of a tile."""
    tiles = -(-len(rows) // TILE)
    if len(rows) < tiles * TILE:
        rows = np.concatenate([rows, np.zeros((tiles * TILE - len(rows), *rows.shape[1:]), np.uint8)])
    fours = np.ascontiguousarray(rows).view(np.uint32).reshape(tiles, TILE, -1)
    transposed = np.ascontiguousarray(fours.transpose(0, 2, 1)).view(np.uint8)
    return transposed.reshape(tiles, rows.shape[1], -1)


def _planes(packed_format: PackedFormat, codes: Array) -> Array:
    """Return codes of fewer than eight bits, [N, blocks, 32], as lower and upper bits, [N, blocks, 4 * bits]."""
    fours = np.ascontiguousarray(codes).view(np.uint32).reshape(-1, _GROUPS)  # no code reaches into the next
    planes = np.zeros((len(fours), packed_format.bits), np.uint32)
    for group in range(_GROUPS // 2):  # one at a time: NumPy is slow over short axes
        low, high = fours[:, group], fours[:, group + _GROUPS // 2]
        planes[:, group] = low & 0x0F0F0F0F | (high & 0x0F0F0F0F) << 4
    for group in range(_GROUPS if packed_format.upper_bits else 0):
        vector, bit = packed_format.upper_place(group)
        planes[:, _GROUPS // 2 + vector] |= (fours[:, group] >> 4 & 0x0F0F0F0F) << bit
    return planes.view(np.uint8).reshape(*codes.shape[:2], -1)


def _from_planes(packed_format: PackedFormat, codes: Array) -> Array:
    """Return lower and upper bits as codes [tiles, blocks, 512]."""
    lower, upper = np.split(codes, [TILE * BLOCK // 2], axis=-1)
    nibbles = np.concatenate([lower & 15, lower >> 4], axis=-1)
    by_group = nibbles.reshape(*codes.shape[:2], _GROUPS, -1)
    vectors = upper.reshape(*codes.shape[:2], packed_format.upper_bits, TILE * _GROUP)
    for group in range(_GROUPS if packed_format.upper_bits else 0):
        vector, bit = packed_format.upper_place(group)
        by_group[:, :, group] |= (vectors[:, :, vector] >> bit & ((1 << packed_format.upper_bits) - 1)) << 4
    return nibbles


def _gguf_blocks(name: str, rows: Array) -> tuple[GgufBlocks, Array]:
    kind = PACKED_FORMATS[name].gguf
    if kind is None:
        raise BuildError(f"GGUF files have no blocks of {name}", fix=REPORT)
    if rows.ndim != 2 or rows.shape[1] % kind.size or not rows.size:
        raise BuildError(
            f"rows of {rows.shape[-1]} bytes are not a multiple of the block size of {name}, which is {kind.size}",
            fix="download the GGUF file again",
        )
    return kind, rows.reshape(len(rows), -1, kind.size)
