"""Tensors of a GGUF file, dequantized and with their rows in the model's order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ....plugins.errors import BuildError
from ..formats.base import StoredTensor
from ..formats.stored_numbers import Array
from ..safetensors import TensorEntry
from .header import damaged

FLOATS = ("F32", "F16", "BF16")
ROUNDED = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4")
"""Block-quantized types: codes with one scale per block."""


@dataclass(frozen=True)
class GgufTensor:
    """One tensor. With ``heads``, the file stores RoPE pairs of each head in adjacent rows.

    The model places the two rows of a pair half a head apart.
    """

    name: str
    entry: TensorEntry
    heads: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.entry.shape

    @property
    def granule(self) -> int:
        return self.shape[0] // self.heads if self.heads else 1

    def rows(self, begin: int, end: int) -> Array:
        return self._in_order(begin, end, self._values)

    def blocks(self, begin: int, end: int) -> Array:
        """Rows as stored in the file, uint8 [rows, bytes], in the order of ``rows``."""
        return self._in_order(begin, end, self._stored)

    def _in_order(self, begin: int, end: int, read: Callable[[int, int], Array]) -> Array:
        size = self.granule
        first, last = begin // size * size, -(-end // size) * size  # whole heads
        values = read(first, last)
        if self.heads:
            pairs = values.reshape(-1, size // 2, 2, *values.shape[1:])
            values = pairs.swapaxes(1, 2).reshape(values.shape)
        return values[begin - first : end - first]

    def _stored(self, begin: int, end: int) -> Array:
        width = (self.entry.end - self.entry.begin) // self.shape[0]
        return _read(self.name, self.entry, begin * width, (end - begin) * width).reshape(end - begin, width)

    def _values(self, begin: int, end: int) -> Array:
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        values = dequantize(self._stored(begin, end), GGMLQuantizationType[self.entry.dtype])
        return np.ascontiguousarray(values, np.float32).reshape(end - begin, *self.shape[1:])


@dataclass(frozen=True)
class GgufStack:
    """Experts of a model that stores them transposed: ``[E, columns, rows]``, or ``[E, rows]`` of biases.

    The rows of several ``parts`` alternate.
    """

    parts: tuple[GgufTensor, ...]

    @property
    def entry(self) -> TensorEntry:
        return self.parts[0].entry

    @property
    def granule(self) -> int:
        return 1

    @property
    def shape(self) -> tuple[int, ...]:
        count, rows, *columns = self.parts[0].shape
        return (count, *columns, rows * len(self.parts))

    @property
    def flat(self) -> tuple[GgufTensor, ...]:
        """The parts as matrices, with the rows of all experts below each other."""
        return tuple(replace(part, entry=_flat(part.entry)) for part in self.parts)

    def rows(self, begin: int, end: int) -> Array:
        parts = [part.rows(begin, end) for part in self.parts]
        together = np.stack(parts, axis=2).reshape(end - begin, -1, *parts[0].shape[2:])
        return together.swapaxes(1, 2) if together.ndim > 2 else together


def _flat(entry: TensorEntry) -> TensorEntry:
    return replace(entry, shape=(math.prod(entry.shape[:-1]), entry.shape[-1]))


def _read(name: str, entry: TensorEntry, offset: int, count: int) -> Array:
    try:
        with entry.file.open("rb", buffering=0) as file:
            file.seek(entry.begin + offset)
            raw = np.fromfile(file, np.uint8, count)
    except OSError as error:
        raise BuildError(f"cannot read {entry.file}", why=str(error), fix="check the file and the disk") from None
    if raw.size != count:
        raise damaged(entry.file, f"the file ends inside {name}: it was truncated while it was read")
    return raw


def shares(tensors: Mapping[str, StoredTensor]) -> str:
    """Describe the types of some tensors, each with its share of the values, the largest first."""
    counts: Counter[str] = Counter()
    for tensor in tensors.values():
        counts[tensor.entry.dtype] += math.prod(tensor.shape)
    total = max(counts.total(), 1)
    return ", ".join(f"{name} {_percent(count / total)}" for name, count in counts.most_common())


def rounded_types(tensors: Mapping[str, StoredTensor]) -> tuple[str, ...]:
    """Return the quantized types among some tensors, by name."""
    return tuple(sorted({tensor.entry.dtype for tensor in tensors.values()} & {*ROUNDED}))


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 else "below 0.1%"
