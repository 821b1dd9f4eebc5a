"""Stream weights from a checkpoint into a lowered graph's external-data file, a few rows at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ..plugins.errors import REPORT, BuildError
from ..plugins.number_types import BY_NUMPY, FLOAT16, UINT8
from .lowering.lowering_result import GraphWeight, Lowered
from .lowering.shared_passes import ROPE_METADATA, fill_rope_tables
from .weight_cuts import Cut, whole_matrices

ALIGNMENT = 4096  # ONNX Runtime maps the file; a mapped tensor starts on a page
_SMALL = 64  # alignment of tensors smaller than a page, because there are many scales

_HALVES = ("cos", "sin")

# Yields a graph weight as consecutive runs of its values, in row-major order; an array works too, row by row.
Read = Callable[[str], Iterable[Any]]


@dataclass(frozen=True)
class Run:
    """The location of one weight in a file beside the graph, in bytes."""

    file: str
    offset: int
    length: int


def needed_weights(semantic: ir.Model) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight that a semantic graph needs from a checkpoint."""
    tables = {
        f"{prefix}.{suffix}" for prefix in json.loads(semantic.metadata_props[ROPE_METADATA]) for suffix in _HALVES
    }
    return {
        str(name): tuple(int(d) for d in value.const_value.shape)
        for name, value in semantic.graph.initializers.items()
        if isinstance(value.const_value, ir.ExternalTensor) and name not in tables
    }


def _offsets(weights: Iterable[GraphWeight]) -> tuple[dict[tuple[str, ...], int], int]:
    """Return the offsets of each weight's parts, and the end of all."""
    offsets: dict[tuple[str, ...], int] = {}
    end = 0
    for weight in weights:
        if weight.parts in offsets:
            continue
        unit = ALIGNMENT if weight.bytes >= ALIGNMENT else _SMALL
        end = -(-end // unit) * unit
        offsets[weight.parts] = end
        end += weight.bytes
    return offsets, end


def leave(lowered: Lowered, runs: Mapping[str, Run]) -> Lowered:
    """Refer to weights whose only part is already in a file; returns the graph with the remaining weights to write.

    Weights whose stored form differs from the one that the graph needs are written again.
    """
    rest = []
    for weight in lowered.weights:
        run = runs.get(weight.parts[0]) if len(weight.parts) == 1 else None
        if run is None or run.length != weight.bytes:
            rest.append(weight)
        else:
            _place(lowered.model, weight, run.file, run.offset)
    return Lowered(lowered.model, tuple(rest))


def attach(
    lowered: Lowered,
    read: Read,
    path: Path,
    on_bytes: Callable[[int], None] = lambda _: None,
    position: Callable[[str], Any] = lambda _: 0,
    cuts: Mapping[str, Cut] | None = None,
    on_end: Callable[[int], None] = lambda _: None,
) -> dict[str, Run]:
    """Write ``path`` (the graph) and ``path.data`` (its weights); returns the location of every part.

    ``on_bytes`` is called with the size of every write, for a progress bar; ``position(part)`` sorts the reads, so that
    a checkpoint is read shard by shard, and the weights in the file, so that it is written from front to back;
    ``on_end`` is called with the offset before which it is complete. Parts in ``cuts`` are not read directly: their
    source is read once for all of them. The graph is written last, so that its presence means that the weights are
    complete. Raises ``BuildError`` for a tensor of wrong size.
    """
    cuts = cuts or {}
    data = data_file(path)
    runs: dict[str, Run] = {}
    reads: dict[str, list[GraphWeight]] = {}
    for weight in {weight.parts: weight for weight in lowered.weights}.values():
        first = weight.parts[0]
        reads.setdefault(cuts[first].source if first in cuts else first, []).append(weight)
    names = sorted(reads, key=position)
    offsets, size = _offsets(weight for name in names for weight in reads[name])
    with open(data, "wb") as file:
        file.truncate(size)
        for name in names:
            on_end(min(offsets[weight.parts] for weight in reads[name]))
            offsets_of_cuts = {weight: offsets[weight.parts] for weight in reads[name]}
            cut = {weight: offset for weight, offset in offsets_of_cuts.items() if weight.parts[0] in cuts}
            written = _write_cuts(file.fileno(), name, cut, cuts, read, on_bytes)
            for weight, offset in offsets_of_cuts.items() - cut.items():
                written |= _write(file.fileno(), weight, offset, read, on_bytes)
            runs |= {part: Run(data.name, *location) for part, location in written.items()}
        on_end(size)
        os.fsync(file.fileno())
    for weight in lowered.weights:
        _place(lowered.model, weight, data.name, offsets[weight.parts])
    onnx.save_model(ir.to_proto(lowered.model), path)
    return runs


def data_file(model: Path) -> Path:
    """Return the file with the weights of a graph."""
    return model.with_name(model.name + ".data")


def refer(semantic: ir.Model, runs: Mapping[str, Run], cache_length: int) -> None:
    """Make a semantic graph refer to the weights of a lowered one, so that it is complete without a second copy.

    Its rotary tables are filled for ``cache_length``; it can still be lowered for another length.
    """
    shapes, rope = needed_weights(semantic), semantic.metadata_props[ROPE_METADATA]
    fill_rope_tables(semantic, cache_length)
    semantic.metadata_props[ROPE_METADATA] = rope
    for name, shape in shapes.items():
        value = semantic.graph.initializers[name]
        run = runs[name]
        value.const_value = ir.ExternalTensor(
            run.file, run.offset, run.length, value.const_value.dtype, shape=ir.Shape(shape), name=name
        )


def _place(model: ir.Model, weight: GraphWeight, file: str, offset: int) -> None:
    """Make the graph's initializer refer to these bytes of the file."""
    dtype, shape = ir.DataType(BY_NUMPY[weight.dtype].onnx), ir.Shape(weight.shape)
    tensor = ir.ExternalTensor(file, offset, weight.bytes, dtype, shape=shape, name=weight.name)
    model.graph.initializers[weight.name].const_value = tensor


def _write(
    descriptor: int, weight: GraphWeight, offset: int, read: Read, on_bytes: Callable[[int], None]
) -> dict[str, tuple[int, int]]:
    """Write the parts of one weight, stacked along axis 0; returns their locations."""
    end = offset + weight.bytes
    runs = {}
    for part in weight.parts:
        begin = offset
        for rows in read(part):
            offset = _put(descriptor, _bytes(rows, weight, part), offset, end, weight, on_bytes)
        runs[part] = begin, offset - begin
    if offset != end:
        raise _misfit(weight, "few")
    return runs


def _write_cuts(
    descriptor: int,
    source: str,
    offsets_of_cuts: Mapping[GraphWeight, int],
    cuts: Mapping[str, Cut],
    read: Read,
    on_bytes: Callable[[int], None],
) -> dict[str, tuple[int, int]]:
    """Write all weights cut from ``source``, each from its offset on, reading the source once."""
    at = dict(offsets_of_cuts)
    if at:
        like = cuts[next(iter(at)).parts[0]]
        for stack in whole_matrices(read(source), like.rows, like.columns):
            for weight, offset in at.items():
                content = _bytes(cuts[weight.parts[0]].of(stack), weight, source)
                end = offsets_of_cuts[weight] + weight.bytes
                at[weight] = _put(descriptor, content, offset, end, weight, on_bytes)
    for weight, offset in at.items():
        if offset != offsets_of_cuts[weight] + weight.bytes:
            raise _misfit(weight, "few")
    return {weight.parts[0]: (begin, weight.bytes) for weight, begin in offsets_of_cuts.items()}


def _put(
    descriptor: int,
    content: np.ndarray[Any, np.dtype[np.uint8]],
    offset: int,
    end: int,
    weight: GraphWeight,
    on_bytes: Callable[[int], None],
) -> int:
    """Write bytes of a weight that ends at ``end``; returns the new offset."""
    if offset + content.size > end:
        raise _misfit(weight, "many")
    view = content.data
    while view:
        count = os.pwrite(descriptor, view, offset)
        view, offset = view[count:], offset + count
        on_bytes(count)
    return offset


def _bytes(rows: Any, weight: GraphWeight, part: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the bytes of rows as stored: four-bit codes two per byte, low half first, also in a tensor of bytes."""
    kind, found = BY_NUMPY[weight.dtype], BY_NUMPY.get(str(rows.dtype))
    dtype, packed = kind.dtype, found is not None and found.codes_per_byte == 2
    if kind.is_code and rows.dtype != dtype and not (packed and kind is UINT8):
        raise BuildError(f"{part} should be stored as {weight.dtype}, but was read as {rows.dtype}", fix=REPORT)
    if packed:
        nibbles = np.ascontiguousarray(rows).reshape(-1).view(np.uint8) & np.uint8(15)
        low: np.ndarray[Any, np.dtype[np.uint8]] = nibbles[0::2].copy()
        low[: nibbles.size // 2] |= nibbles[1::2] << np.uint8(4)
        return low
    with np.errstate(over="ignore"):
        converted = np.ascontiguousarray(rows, dtype=dtype)
    if weight.dtype == "float16" and not np.isfinite(converted).all():
        raise BuildError(
            f"{part}: values overflow float16",
            why=f"the largest finite value of float16 is {FLOAT16.largest:.0f}",
            fix="build with `--precision bf16`, or for ONNX Runtime, which computes in fp32",
        )
    return converted.reshape(-1).view(np.uint8)


def _misfit(weight: GraphWeight, problem: str) -> BuildError:
    return BuildError(
        f"{', '.join(weight.parts)}: too {problem} values for {weight.name} {list(weight.shape)}",
        why="config.json and the weights do not match",
        fix="use the config.json that belongs to these weights",
    )
