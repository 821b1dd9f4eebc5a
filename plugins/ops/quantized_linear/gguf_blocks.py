"""Codes and scales in the blocks of GGUF files: one function for each arrangement of their bytes.

Source: the structs ``block_*`` of ggml. All functions take blocks, uint8 [N, blocks, bytes].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Reader = Callable[[Array], Array]

_HALF = 2  # bytes of a float16


def leading_half(blocks: Array) -> Array:
    """Return the float16 number at the start of each block."""
    return _halves(blocks, 1)[..., 0]


def leading_halves(blocks: Array) -> Array:
    """Return the two float16 numbers at the start of each block."""
    return _halves(blocks, 2)


def first_byte(blocks: Array) -> Array:
    """Return the first byte of each block."""
    return blocks[..., 0]


def k_scales(blocks: Array) -> Array:
    """Return d, dmin, 8 scales and 8 minimums of Q4_K and Q5_K, [N, blocks, 20]; they are stored in six bits each."""
    scales, minimums, rest = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    return np.concatenate(
        [
            blocks[..., :4],
            scales & 63,
            rest & 15 | scales >> 2 & 48,
            minimums & 63,
            rest >> 4 | minimums >> 2 & 48,
        ],
        axis=-1,
    )


def q6_k_scales(blocks: Array) -> Array:
    """Return d and 16 scales of Q6_K, [N, blocks, 18]."""
    return np.concatenate([blocks[..., 208:], blocks[..., 192:208]], axis=-1)


def int8_codes(blocks: Array) -> Array:
    """Return int8 codes, which follow a float16."""
    return np.ascontiguousarray(blocks[..., _HALF:]).view(np.int8)


def nibbles_from(start: int) -> Reader:
    """Return the reader of 4-bit codes from a byte on: the low halves of bytes come before the high halves."""
    return lambda blocks: _nibbles(blocks[..., start:])


def five_bits_from(start: int) -> Reader:
    """Return the reader of 5-bit codes: from a byte on 32 fifth bits, then 4-bit codes."""

    def read(blocks: Array) -> Array:
        fifth = np.unpackbits(blocks[..., start : start + 4], axis=-1, bitorder="little")
        codes: Array = _nibbles(blocks[..., start + 4 :]) | fifth << 4
        return codes

    return read


def q4_k_codes(blocks: Array) -> Array:
    """Return the codes of Q4_K: of each 32 bytes the low halves, then the high halves."""
    return _flat(_nibbles(_split(blocks[..., 16:], 4)))


def q5_k_codes(blocks: Array) -> Array:
    """Return the codes of Q5_K: bit b of 32 bytes belongs to the columns of the b-th block of 32."""
    fifth = blocks[..., 16:48][..., None, :] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    codes: Array = _flat(_nibbles(_split(blocks[..., 48:], 4))) | _flat(fifth) << 4
    return codes


def q6_k_codes(blocks: Array) -> Array:
    """Return the codes of Q6_K: for each 128 columns 64 bytes of lower bits, and 32 bytes of upper bits."""
    codes = _flat(_nibbles(_split(blocks[..., :128], 2)))
    upper = np.ascontiguousarray(blocks[..., 128:192]).view(np.uint32).reshape(-1, 8)
    quarters = codes.view(np.uint32).reshape(-1, 4, 8)
    for quarter in range(4):
        quarters[:, quarter] |= (upper >> 2 * quarter & 0x03030303) << 4
    return codes


def _halves(blocks: Array, count: int) -> Array:
    return np.ascontiguousarray(blocks[..., : _HALF * count]).view(np.float16)


def _nibbles(pairs: Array) -> Array:
    return np.concatenate([pairs & 15, pairs >> 4], axis=-1)


def _split(numbers: Array, parts: int) -> Array:
    return numbers.reshape(*numbers.shape[:-1], parts, -1)


def _flat(parts: Array) -> Array:
    return parts.reshape(*parts.shape[:2], -1)
