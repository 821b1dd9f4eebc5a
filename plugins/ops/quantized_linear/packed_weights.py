"""Weight matrices packed for the CPU kernels to read in place, from codes or from GGUF blocks.

A matrix [N, K] is divided into tiles of 16 rows (the last is padded with zeros), and a tile into blocks of 32 columns.
The codes of a block are stored in groups of four columns; each group stores its 16 rows consecutively.

======== =================================== ==============================================================
format   scales                              value of a number
======== =================================== ==============================================================
``int8`` float32 [tiles, 1, 16]              code * scale of the row; codes -128..127
``q8_0`` float16 [tiles, blocks, 16]         code * scale of the block; codes -128..127
``q4_0`` float16 [tiles, blocks, 16]         (code - 8) * scale; codes 0..15
``q4_1`` float16 [tiles, blocks, 32]         code * scale + minimum; 16 scales, then the tile's 16 minimums
======== =================================== ==============================================================

Codes are uint8: [tiles, blocks, 512] for eight bits, stored with an offset of 128, or [tiles, blocks, 256], where the
low half of a byte holds columns 0..15 and the high half columns 16..31. Source of q8_0, q4_0 and q4_1: block_q8_0,
block_q4_0 and block_q4_1 of ggml, whose scales and codes are moved bit by bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import BuildError

Array = NDArray[Any]

FORMATS = ("int8", "q8_0", "q4_0", "q4_1")
GGUF_BLOCK_BYTES = {"q8_0": 34, "q4_0": 18, "q4_1": 20}
TILE, BLOCK = 16, 32
_GROUP = 4
_HALF = 2  # bytes of a float16
_MIDDLE = 128  # offset of 8-bit codes
_FOUR_BITS = ("q4_0", "q4_1")


def one_of_formats(name: str) -> str | None:
    """Return a complaint if the format is unknown."""
    return None if name in FORMATS else f"must be one of {', '.join(FORMATS)}"


def code_shape(name: str, rows: int, columns: int) -> tuple[int, int, int]:
    """Return the shape of the packed codes of a matrix [rows, columns]."""
    bytes_of_block = TILE * BLOCK // (2 if name in _FOUR_BITS else 1)
    return -(-rows // TILE), columns // BLOCK, bytes_of_block


def scale_shape(name: str, rows: int, columns: int) -> tuple[int, int, int]:
    """Return the shape of its packed scales."""
    return -(-rows // TILE), 1 if name == "int8" else columns // BLOCK, TILE * (2 if name == "q4_1" else 1)


def pack_codes(name: str, codes: Array) -> Array:
    """Pack whole codes [N, K]: int8 in -128..127, or 4-bit codes 0..15 in any integer type.

    Raises ``BuildError`` for columns that are not whole blocks.
    """
    if codes.shape[-1] % BLOCK or not codes.size:
        raise BuildError(f"{codes.shape[-1]} columns are not a multiple of the block size, {BLOCK}")
    whole = codes.astype(np.uint8) if name in _FOUR_BITS else codes.view(np.uint8) ^ _MIDDLE
    grouped = _grouped(whole.reshape(len(whole), -1, BLOCK))
    if name not in _FOUR_BITS:
        return grouped
    low, high = np.split(grouped, 2, axis=-1)
    packed: Array = low | high << 4
    return packed


def pack_scales(name: str, scales: Array) -> Array:
    """Pack scales of rows [N, 1] or of blocks [N, blocks]; q4_1 has [N, blocks, 2], minimums after scales.

    Raises ``BuildError`` for scales that are not finite in their stored type.
    """
    with np.errstate(over="ignore"):
        stored = scales.astype(np.float32 if name == "int8" else np.float16)
    if not np.isfinite(stored).all():
        raise BuildError("a scale of the weights is not finite", fix="download the checkpoint again")
    tiles = tiled(stored)  # [tiles, blocks, 16] or [tiles, blocks, 2, 16]
    return tiles.reshape(*tiles.shape[:2], -1)


def pack_gguf(name: str, rows: Array) -> tuple[Array, Array]:
    """Pack rows of GGUF blocks, uint8 [N, bytes] as stored in the file; return codes and scales.

    Raises ``BuildError`` for rows that are not whole blocks, and for scales that are not finite.
    """
    return pack_codes(name, gguf_codes(name, rows)), pack_scales(name, gguf_scales(name, rows))


def gguf_codes(name: str, rows: Array) -> Array:
    """Return the whole codes of rows of GGUF blocks, [N, K], as ``pack_codes`` takes them."""
    codes = _gguf_blocks(name, rows)[..., _HALF * _numbers(name) :]
    if name in _FOUR_BITS:
        return np.concatenate([codes & 15, codes >> 4], axis=-1).reshape(len(rows), -1)
    return np.ascontiguousarray(codes).view(np.int8).reshape(len(rows), -1)


def gguf_scales(name: str, rows: Array) -> Array:
    """Return their scales, float16 [N, blocks] or [N, blocks, 2] for q4_1, as ``pack_scales`` takes them."""
    halves = np.ascontiguousarray(_gguf_blocks(name, rows)[..., : _HALF * _numbers(name)]).view(np.float16)
    return halves if name == "q4_1" else halves[..., 0]


def unpack(name: str, codes: Array, scales: Array, rows: int) -> Array:
    """Return the matrix float32 [rows, K] of packed codes and scales: products, then sums, in float32."""
    whole, factors, least = unpacked(name, codes, scales, rows)
    return (whole.astype(np.float32) * factors[..., None] + least[..., None]).reshape(rows, -1)


def unpacked(name: str, codes: Array, scales: Array, rows: int) -> tuple[Array, Array, Array]:
    """Return whole numbers int32 [rows, blocks, 32], scales float32 [rows, blocks], and minimums (or zeros)."""
    if name in _FOUR_BITS:
        codes = np.concatenate([codes & 15, codes >> 4], axis=-1)
    tiles, blocks, _ = codes.shape
    grouped = codes.reshape(tiles, blocks, BLOCK // _GROUP, TILE, _GROUP)
    by_row = grouped.transpose(0, 3, 1, 2, 4).reshape(tiles * TILE, blocks, BLOCK)
    middle = {"q4_0": 8, "q4_1": 0}.get(name, _MIDDLE)
    numbers = (
        scales.reshape(tiles, scales.shape[1], -1, TILE)
        .transpose(0, 3, 1, 2)
        .reshape(tiles * TILE, -1, 1 + (name == "q4_1"))
    )
    wide = np.broadcast_to(numbers, (tiles * TILE, blocks, numbers.shape[-1])).astype(np.float32)
    least = wide[..., 1] if name == "q4_1" else np.zeros_like(wide[..., 0])
    return by_row[:rows].astype(np.int32) - middle, wide[:rows, :, 0], least[:rows]


def tiled(rows: Array) -> Array:
    """Return an array [N, ...] as [tiles, ..., 16], padded with zeros."""
    filled = np.zeros((-(-len(rows) // TILE) * TILE, *rows.shape[1:]), rows.dtype)
    filled[: len(rows)] = rows
    return np.ascontiguousarray(np.moveaxis(filled.reshape(-1, TILE, *rows.shape[1:]), 1, -1))


def _grouped(codes: Array) -> Array:
    """Return codes uint8 [N, blocks, 32] as [tiles, blocks, 512]."""
    tiles = tiled(codes.reshape(*codes.shape[:2], -1, _GROUP))  # [tiles, blocks, groups, 4, 16]
    turned = np.ascontiguousarray(tiles.swapaxes(-1, -2))
    return turned.reshape(*turned.shape[:2], -1)


def _gguf_blocks(name: str, rows: Array) -> Array:
    size = GGUF_BLOCK_BYTES[name]
    if rows.ndim != 2 or rows.shape[1] % size or not rows.size:
        raise BuildError(f"rows of {rows.shape[-1]} bytes are not a multiple of the block size of {name}, {size}")
    return rows.reshape(len(rows), -1, size)


def _numbers(name: str) -> int:
    """Return the number of float16 values at the start of a GGUF block."""
    return 2 if name == "q4_1" else 1
