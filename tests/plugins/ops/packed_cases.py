"""Random matrices in every packed format, for the tests of the ops that read them."""

from __future__ import annotations

from typing import Any

import numpy as np

from peagle.plugins.ops.quantized_linear.packed_weights import (
    FORMATS,
    GGUF_BLOCK_BYTES,
    pack_codes,
    pack_gguf,
    pack_scales,
)

__all__ = ["FORMATS", "gguf_blocks", "matrix"]


def gguf_blocks(rng: Any, name: str, rows: int, columns: int) -> Any:
    """Rows of GGUF blocks, uint8 [rows, bytes]: any codes, scales of both signs."""
    blocks = rng.integers(0, 256, (rows, columns // 32, GGUF_BLOCK_BYTES[name]), dtype=np.uint8)
    for number in range(2 if name == "q4_1" else 1):
        scales = rng.normal(size=(rows, columns // 32, 1)).astype(np.float16)
        blocks[..., 2 * number : 2 * number + 2] = scales.view(np.uint8)
    return blocks.reshape(rows, -1)


def matrix(rng: Any, name: str, rows: int, columns: int) -> tuple[Any, Any]:
    """Packed codes and scales."""
    if name == "int8":
        codes = rng.integers(-128, 128, (rows, columns), dtype=np.int8)
        return pack_codes(name, codes), pack_scales(name, rng.normal(size=(rows, 1)))
    return pack_gguf(name, gguf_blocks(rng, name, rows, columns))
