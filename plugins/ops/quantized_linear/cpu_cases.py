"""Test cases of ``QuantizedLinear``'s CPU kernel: every format, sizes that are not multiples of a tile."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...op_spec import CpuCase
from .packed_weights import FORMATS, GGUF_BLOCK_BYTES, Array, pack_codes, pack_gguf, pack_scales

ROWS, COLUMNS = 37, 96  # of the matrices: not whole tiles, and more than one block


def cpu_cases() -> Iterator[CpuCase]:
    """Seven rows, which are multiplied in two parts."""
    x = np.random.default_rng(1).normal(size=(7, COLUMNS)).astype(np.float32)
    for name in FORMATS:
        attributes = {"format": name, "rows": ROWS}
        yield CpuCase((x, *random_matrix(name)), attributes, constants=("codes", "scales"))


def random_matrix(name: str, rows: int = ROWS, columns: int = COLUMNS, seed: int = 0) -> tuple[Array, Array]:
    """Return packed codes and scales of a matrix."""
    rng = np.random.default_rng(seed)
    if name == "int8":
        whole = rng.integers(-128, 128, (rows, columns), dtype=np.int8)
        return pack_codes(name, whole), pack_scales(name, rng.random((rows, 1), np.float32))
    blocks = rng.integers(0, 256, (rows, columns // 32, GGUF_BLOCK_BYTES[name]), dtype=np.uint8)
    blocks[..., 1] &= 0x3F  # keep the exponents of the float16 numbers finite
    blocks[..., 3] &= 0x3F if name == "q4_1" else 0xFF
    return pack_gguf(name, blocks.reshape(rows, -1))
