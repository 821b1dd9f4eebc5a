"""Random weights streamed into sharded safetensors: planned from shapes first, then written in small pieces.

Random numbers are drawn once into a ring buffer, which every tensor reads from its own offset. Writing is therefore as
fast as the disk, and no whole tensor is in memory unless an encoder needs one matrix of it.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import torch
from checkpoint_formats import encode
from torch import Tensor

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

# Both prime, so that rows of any width, and tensors, start at ever new offsets of the ring.
RING = 4_194_301
STRIDE = 1_618_033

_DTYPES = {
    torch.bfloat16: "BF16", torch.float32: "F32", torch.float16: "F16", torch.uint8: "U8",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.float8_e8m0fnu: "F8_E8M0", torch.int64: "I64",
}  # fmt: skip
_ITEMSIZE: dict[str, int] = {name: dtype.itemsize for dtype, name in _DTYPES.items()}


@dataclass(frozen=True)
class Entry:
    """One tensor of a file; ``dtype`` in safetensors' naming."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * _ITEMSIZE[self.dtype]


class Source(Protocol):
    """Tensors that belong together in a shard, and their bytes."""

    @property
    def entries(self) -> Sequence[Entry]:
        """Return the tensors to be written."""
        ...

    def pieces(self) -> Iterator[tuple[int, memoryview]]:
        """Yield (entry index, its next bytes); entries may alternate."""
        ...


class Noise:
    """Normally distributed numbers for one seed."""

    def __init__(self, seed: int) -> None:
        self._ring = torch.randn(RING, generator=torch.Generator().manual_seed(seed))
        self._scaled: dict[tuple[float, float], Tensor] = {}

    def runs(self, place: int, count: int, mean: float, std: float) -> Iterator[Tensor]:
        """Yield ``count`` numbers in bf16 starting at ``place``, in runs; the ring is endless."""
        ring = self._scaled.get((mean, std))
        if ring is None:
            ring = self._scaled[mean, std] = (self._ring * std + mean).bfloat16()
        while count:
            place %= RING
            run = ring[place : place + count]
            yield run
            place, count = place + len(run), count - len(run)


@dataclass(frozen=True)
class RandomTensor:
    """A bf16 tensor of random numbers; tensors of one ``Noise`` differ by their ``number``."""

    name: str
    shape: tuple[int, ...]
    number: int
    mean: float
    std: float
    noise: Noise

    @property
    def entries(self) -> Sequence[Entry]:
        return (Entry(self.name, "BF16", self.shape),)

    def pieces(self) -> Iterator[tuple[int, memoryview]]:
        for run in self._runs(0, math.prod(self.shape)):
            yield 0, _bytes(run)

    def matrices(self) -> Iterator[Tensor]:
        """Yield the last two axes, one matrix [rows, columns] after the other."""
        rows, columns = self.shape[-2:]
        for i in range(math.prod(self.shape[:-2])):
            yield torch.cat(list(self._runs(i * rows * columns, rows * columns))).view(rows, columns)

    def _runs(self, offset: int, count: int) -> Iterator[Tensor]:
        return self.noise.runs(self.number * STRIDE + offset, count, self.mean, self.std)


class Encoder:
    """One storage format: the stored tensors of a matrix, and their layout before it exists."""

    def __init__(self, format: str) -> None:
        self.format = format
        self._layouts: dict[tuple[str, tuple[int, ...]], dict[str, tuple[str, tuple[int, ...]]]] = {}

    def encode(self, name: str, matrix: Tensor) -> dict[str, Tensor]:
        """Return the stored tensors of one matrix."""
        return encode(name, matrix, self.format)

    def layout(self, name: str, matrix: tuple[int, ...]) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return {name: (dtype, shape)} of the result of ``encode``, found once per shape with a matrix of ones."""
        stem = name.removesuffix(".weight")
        kind = name.removeprefix(stem)
        if (kind, matrix) not in self._layouts:
            stored = self.encode(kind, torch.ones(matrix, dtype=torch.bfloat16))
            self._layouts[kind, matrix] = {n: (_DTYPES[t.dtype], tuple(t.shape)) for n, t in stored.items()}
        return {stem + n: what for n, what in self._layouts[kind, matrix].items()}


@dataclass(frozen=True)
class EncodedTensor:
    """A random tensor in encoded storage, made one matrix at a time."""

    values: RandomTensor
    encoder: Encoder
    transposed: bool = False

    @cached_property
    def entries(self) -> Sequence[Entry]:
        *batch, rows, columns = self.values.shape
        matrix = (columns, rows) if self.transposed else (rows, columns)
        layout = self.encoder.layout(self.values.name, matrix)
        return tuple(Entry(name, dtype, (*batch, *shape)) for name, (dtype, shape) in layout.items())

    def pieces(self) -> Iterator[tuple[int, memoryview]]:
        for matrix in self.values.matrices():
            stored = self.encoder.encode(self.values.name, matrix.T.contiguous() if self.transposed else matrix)
            for i, entry in enumerate(self.entries):
                yield i, _bytes(stored[entry.name])


def total_bytes(sources: Sequence[Source]) -> int:
    return sum(entry.nbytes for source in sources for entry in source.entries)


def write_shards(folder: Path, sources: Sequence[Source], limit: int, advance: Callable[[int], None]) -> list[Path]:
    """Write shards of at most ``limit`` bytes (a larger source gets its own) and their index."""
    shards = _packed(sources, limit)
    paths = [folder / f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    weight_map: dict[str, str] = {}
    for path, shard in zip(paths, shards, strict=True):
        write_file(path, shard, advance)
        weight_map |= {entry.name: path.name for source in shard for entry in source.entries}
    index = {"metadata": {"total_size": total_bytes(sources)}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    return paths


def write_file(path: Path, sources: Sequence[Source], advance: Callable[[int], None]) -> None:
    """Write one safetensors file."""
    entries = [entry for source in sources for entry in source.entries]
    # Wide types first, as the format's own writer does, so that every tensor is aligned.
    order = sorted(range(len(entries)), key=lambda i: -_ITEMSIZE[entries[i].dtype])
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offsets, end = [0] * len(entries), 0
    for i in order:
        entry, offsets[i] = entries[i], end
        end += entry.nbytes
        header[entry.name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": [offsets[i], end]}
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        base, first = file.tell(), 0
        file.truncate(base + end)
        for source in sources:
            at = [base + offset for offset in offsets[first : first + len(source.entries)]]
            for i, piece in source.pieces():
                file.seek(at[i])
                at[i] += file.write(piece)
                advance(len(piece))
            first += len(source.entries)


def _packed(sources: Sequence[Source], limit: int) -> list[list[Source]]:
    shards: list[list[Source]] = []
    room = -1
    for source in sources:
        size = total_bytes([source])
        if size > room:
            shards.append([])
            room = limit
        shards[-1].append(source)
        room -= size
    return shards


def _bytes(tensor: Tensor) -> memoryview:
    return memoryview(tensor.contiguous().view(-1).view(torch.uint8).numpy())
