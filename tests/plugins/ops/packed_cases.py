"""Random matrices in every packed format, for the tests of the ops that read them."""

from __future__ import annotations

from typing import Any

import numpy as np

from peagle.plugins.ops.quantized_linear.packed_formats import PACKED_FORMATS
from peagle.plugins.ops.quantized_linear.packed_weights import (
    FORMATS,
    columns_multiple,
    pack_codes,
    pack_gguf,
    pack_scales,
)

__all__ = ["FORMATS", "GGUF_FORMATS", "columns_of", "gguf_blocks", "matrix"]

GGUF_FORMATS = tuple(name for name in FORMATS if PACKED_FORMATS[name].gguf)


def columns_of(name: str, blocks: int) -> int:
    """So many blocks, or as many more as the format needs for a whole superblock."""
    multiple = columns_multiple(name)
    return -(-32 * blocks // multiple) * multiple


def gguf_blocks(rng: Any, name: str, rows: int, columns: int) -> Any:
    """Rows of GGUF blocks, uint8 [rows, bytes]: any codes, scales of both signs."""
    kind = PACKED_FORMATS[name].gguf
    assert kind is not None
    lead = (rows, columns // columns_multiple(name))
    blocks = rng.integers(0, 256, (*lead, kind.size), dtype=np.uint8)
    for at in kind.halves:
        blocks[..., at : at + 2] = rng.normal(size=(*lead, 1)).astype(np.float16).view(np.uint8)
    for at in kind.exponents:
        blocks[..., at] = rng.integers(120, 130, lead)
    return blocks.reshape(rows, -1)


def matrix(rng: Any, name: str, rows: int, columns: int) -> tuple[Any, Any]:
    """Packed codes and scales."""
    if name not in GGUF_FORMATS:
        codes = rng.integers(-128, 128, (rows, columns), dtype=np.int8)
        return pack_codes(name, codes), pack_scales(name, rng.normal(size=(rows, 1)))
    return pack_gguf(name, gguf_blocks(rng, name, rows, columns))
