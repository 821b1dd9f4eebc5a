"""Matrices of MXFP4 blocks: their numbers, and the products of both ops in the order of their kernels.

A block has 32 columns: 16 bytes, each with the codes of two columns, the first in its low half, and one byte with the
exponent of a power of two (E8M0). It is the layout of GPT-OSS checkpoints (OCP Microscaling Formats 1.0). TensorRT has
no plugins with unsigned bytes, so both come as int8.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...number_types import FP4, MX_BLOCK, from_e8m0
from ..quantized_linear.reference import fused_multiply_add

Array = NDArray[Any]

BYTES = MX_BLOCK // 2  # of the codes of a block
MAX_CHOICES = 256  # of a token: those of one are grouped together

_LANES, _COLUMNS = 32, 8  # of a warp; that a lane adds at a time


def matrix(codes: Array, exponents: Array) -> Array:
    """Return the numbers, float32 [..., columns], of codes int8 [..., blocks, 16] and exponents [..., blocks]."""
    numbers = _numbers(codes) * from_e8m0(exponents.view(np.uint8))[..., None]
    return numbers.reshape(*codes.shape[:-2], -1)


def codes_of_gguf(rows: Array) -> Array:
    """Return the codes, int8 [n, blocks, 16], of rows of GGUF's MXFP4 blocks (17 bytes), uint8 [n, bytes].

    Its first 16 columns are in the low halves of bytes, and the others in the high halves.
    """
    stored = _gguf(rows)[..., 1:]
    both = np.concatenate([stored & 15, stored >> 4], axis=-1)
    codes: Array = (both[..., 0::2] | both[..., 1::2] << 4).view(np.int8)
    return codes


def exponents_of_gguf(rows: Array) -> Array:
    """Return the exponents of the same rows, int8 [n, blocks]."""
    return np.ascontiguousarray(_gguf(rows)[..., 0]).view(np.int8)


def gguf_rows(codes: Array, exponents: Array) -> Array:
    """Return rows of GGUF's blocks, uint8 [n, bytes], of codes [n, blocks, 16] and exponents [n, blocks]."""
    pairs = codes.view(np.uint8)
    both = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(*pairs.shape[:-1], MX_BLOCK)
    stored = both[..., :BYTES] | both[..., BYTES:] << 4
    return np.concatenate([exponents.view(np.uint8)[..., None], stored], axis=-1).reshape(len(codes), -1)


def _gguf(rows: Array) -> Array:
    return rows.reshape(len(rows), -1, 1 + BYTES)


def products(x: Array, codes: Array, exponents: Array) -> Array:
    """Return the products of rows x float32 [n, columns] with every row of a matrix, float32 [n, rows].

    Each lane of a warp adds every 32nd word of eight columns; then the lanes are added, in pairs.
    """
    weights = _numbers(codes).reshape(1, len(codes), -1, _COLUMNS)
    scales = np.repeat(from_e8m0(exponents.view(np.uint8)), MX_BLOCK // _COLUMNS, axis=1)
    numbers = x.reshape(len(x), 1, -1, _COLUMNS)
    with np.errstate(over="ignore", invalid="ignore"):
        sums = weights[..., 0] * numbers[..., 0]
        for i in range(1, _COLUMNS):
            sums = fused_multiply_add(*np.broadcast_arrays(weights[..., i], numbers[..., i], sums))
        total = np.zeros((*sums.shape[:2], _LANES), np.float32)
        for at in range(0, sums.shape[2], _LANES):
            block = slice(at, min(at + _LANES, sums.shape[2]))
            lanes = slice(0, block.stop - at)
            factors = np.broadcast_to(scales[:, block], sums[..., block].shape)
            total[..., lanes] = fused_multiply_add(sums[..., block], factors, total[..., lanes])
        for bits in (16, 8, 4, 2, 1):
            total = total + total[..., np.arange(_LANES) ^ bits]
    return total[..., 0]


def _numbers(codes: Array) -> Array:
    """Return the numbers of codes without their scales, float32 [..., blocks, 32]."""
    pairs = codes.view(np.uint8)
    both = np.stack([pairs & 15, pairs >> 4], axis=-1)
    return np.array(FP4, np.float32)[both].reshape(*codes.shape[:-1], MX_BLOCK)
