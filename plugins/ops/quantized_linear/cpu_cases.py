"""Test cases of ``QuantizedLinear``'s CPU kernel: every format, sizes that are not multiples of a tile."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...op_spec import CpuCase
from .packed_formats import PACKED_FORMATS
from .packed_weights import (
    FORMATS,
    Array,
    columns_multiple,
    pack_codes,
    pack_gguf,
    pack_scales,
)

ROWS = 37  # of the matrices: not whole tiles


def cpu_cases() -> Iterator[CpuCase]:
    """Seven rows, which are multiplied in two parts."""
    for name in FORMATS:
        x = np.random.default_rng(1).normal(size=(7, columns_of(name))).astype(np.float32)
        attributes = {"format": name, "rows": ROWS}
        yield CpuCase((x, *random_matrix(name)), attributes, constants=("codes", "scales"))


def columns_of(name: str) -> int:
    """Return the columns of the matrix in a format: more than one block."""
    return max(96, 2 * columns_multiple(name))


def random_matrix(name: str, rows: int = ROWS, columns: int = 0, seed: int = 0) -> tuple[Array, Array]:
    """Return packed codes and scales of a matrix; it has more than one block of columns unless they are given."""
    rng = np.random.default_rng(seed)
    columns = columns or columns_of(name)
    kind = PACKED_FORMATS[name].gguf
    if kind is None:
        codes = rng.integers(-128, 128, (rows, columns), dtype=np.int8)
        return pack_codes(name, codes), pack_scales(name, rng.random((rows, 1), np.float32))
    blocks = rng.integers(0, 256, (rows, columns // columns_multiple(name), kind.size), dtype=np.uint8)
    for at in kind.halves:
        blocks[..., at + 1] &= 0x3F  # finite and positive
    for at in kind.exponents:
        blocks[..., at] = blocks[..., at] % 16 + 120  # around 1
    return pack_gguf(name, blocks.reshape(rows, -1))
