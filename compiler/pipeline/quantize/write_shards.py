"""Write the tensors of a worklist, shard by shard, with pieces of one tensor in memory at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from ....plugins.number_types import E4M3, scales_of, to_e4m3, usable
from ...checkpoints.checkpoint import PIECE, Checkpoint
from ...checkpoints.safetensors import Shard, Slot, TensorEntry, read_rows, writing_shard
from ...checkpoints.weight_files import INDEX, SINGLE
from ...console import interrupts
from ...console.progress import Advance, Progress
from ...console.progress_lines import Bytes
from ...precision.calibration.saved_ranges import Array, Scales
from ...precision.rounding.in_order import in_order
from .select_matrices import Worklist

Layout = dict[str, dict[str, Slot]]
_SCALE = Slot("F32", (), 4)


def layout(checkpoint: Checkpoint, work: Worklist) -> Layout:
    """Assign each tensor to a file: the checkpoint's keep theirs, scales are stored with the tensor that they scale."""
    files = {tensor.entry.file.name for tensor in checkpoint.tensors.values()}
    only = SINGLE if len(files) == 1 else None
    shards: Layout = {only or file: {} for file in sorted(files)}
    for key, tensor in checkpoint.tensors.items():
        slots, matrix = shards[only or tensor.entry.file.name], work.matrices.get(key)
        if matrix is None:
            slots[key] = _as_stored(tensor.entry)
        else:
            slots[key] = Slot("F8_E4M3", tensor.shape, math.prod(tensor.shape))
            slots[matrix.weight_scale] = slots[matrix.input_scale] = _SCALE
    for name, cache in work.caches.items():
        shards[only or checkpoint.tensors[cache.projection].entry.file.name][name] = _SCALE
    return shards


def total_bytes(files: Layout) -> int:
    """Return the bytes of the tensors in all files."""
    return sum(slot.nbytes for slots in files.values() for slot in slots.values())


def write(
    folder: Path, checkpoint: Checkpoint, work: Worklist, scales: Scales, progress: Progress, *, piece: int = PIECE
) -> None:
    """Write the files of ``layout`` to ``folder`` and, if there are several, their index.

    Raises ``BuildError`` for weights that are not finite.
    """
    files, writer = layout(checkpoint, work), _Writer(checkpoint, work, scales, piece)
    with progress.step("write the weights", Bytes(total_bytes(files))) as advance:
        for file, slots in files.items():
            with writing_shard(folder / file, slots) as shard:
                for key in _in_file_order(checkpoint, slots):
                    interrupts.check()
                    writer.tensor(shard, key, advance)
                for name in slots.keys() & work.caches.keys():
                    shard.write(name, _number(scale_for(float(scales.caches[work.caches[name].range]))))
    if len(files) > 1:
        (folder / INDEX).write_text(json.dumps(_index(files), indent=2) + "\n", encoding="utf-8")


class _Writer:
    """Writer of single tensors, which remembers the magnitudes of those that share a scale."""

    def __init__(self, checkpoint: Checkpoint, work: Worklist, scales: Scales, piece: int) -> None:
        self._checkpoint, self._work, self._scales, self._piece = checkpoint, work, scales, piece
        self._magnitudes: dict[str, float] = {}

    def tensor(self, shard: Shard, key: str, advance: Advance) -> None:
        """Write one tensor of the checkpoint, with its scales if it becomes FP8."""
        matrix = self._work.matrices.get(key)
        if matrix is None:
            for rows in _stored_rows(key, self._checkpoint.tensors[key].entry, self._piece):
                shard.write(key, rows)
                advance(rows.nbytes)
            return
        together = (each for each in matrix.together if each in self._work.matrices)
        scale = scale_for(max(map(self._magnitude, together)))
        shard.write(matrix.weight_scale, _number(scale))
        shard.write(matrix.input_scale, _number(scale_for(matrix.input_amax(self._scales))))
        for codes in in_order(lambda _, values: to_e4m3(values / scale), self._checkpoint.runs(key, self._piece)):
            shard.write(key, codes)
            advance(codes.size)

    def _magnitude(self, key: str) -> float:
        if key not in self._magnitudes:
            pieces = self._checkpoint.runs(key, self._piece)
            self._magnitudes[key] = max(in_order(lambda _, piece: magnitude(piece), pieces), default=0.0)
        return self._magnitudes[key]


def _as_stored(entry: TensorEntry) -> Slot:
    return Slot(entry.dtype, entry.shape, entry.end - entry.begin)


def _in_file_order(checkpoint: Checkpoint, slots: Mapping[str, Slot]) -> Iterable[str]:
    return sorted((key for key in slots if key in checkpoint.tensors), key=checkpoint.position)


def _stored_rows(key: str, entry: TensorEntry, piece: int) -> Iterator[Array]:
    """Yield a tensor as it is stored, some rows at a time."""
    length = entry.shape[0] if entry.shape else 1
    step = max(piece // max((entry.end - entry.begin) // max(length, 1), 1), 1)
    for at in range(0, length, step):
        yield read_rows(key, entry, at, min(at + step, length))


def magnitude(piece: Array) -> float:
    """Return the largest |x|; 0 for an empty array."""
    return max(float(piece.max()), -float(piece.min())) if piece.size else 0.0


def scale_for(amax: float) -> Array:
    """Return the scale, float32 ``[]``, that maps ``amax`` to the largest E4M3 value.

    It is 1 if the scale would be below the normal numbers of float32: a scale must be positive, and values that need a
    smaller one are effectively zero.
    """
    return usable(scales_of(amax, E4M3.largest))


def _number(value: Array) -> Array:
    return np.asarray(value, "<f4")


def _index(files: Layout) -> dict[str, object]:
    placed = {name: file for file, slots in files.items() for name in slots}
    return {"metadata": {"total_size": total_bytes(files)}, "weight_map": dict(sorted(placed.items()))}
