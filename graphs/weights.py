"""Stream weights from a checkpoint into a lowered graph's external-data file, one tensor resident at a time."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from ..plugins.errors import BuildError
from .lowering.lowered import Lowered, Weight

ALIGNMENT = 4096  # ONNX Runtime maps the file; a mapped tensor starts on a page


def _offsets(weights: tuple[Weight, ...]) -> tuple[dict[str, int], int]:
    offsets, end = {}, 0
    for weight in weights:
        offsets[weight.name] = end
        end += -(-weight.bytes // ALIGNMENT) * ALIGNMENT
    return offsets, end


def attach(
    lowered: Lowered,
    read: Callable[[str], np.ndarray],
    path: Path,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> None:
    """Write ``path`` (the graph) and ``path.data`` (its weights).

    ``read(key)`` gives one checkpoint tensor; ``on_bytes`` is told of every write, for a progress bar. The graph is
    written last, so that its presence means the weights are whole. Raises ``BuildError`` on a tensor of wrong shape.
    """
    data = path.with_name(path.name + ".data")
    offsets, size = _offsets(lowered.weights)
    with open(data, "wb") as file:
        file.truncate(size)
        for weight in lowered.weights:
            _write(file.fileno(), weight, offsets[weight.name], read, on_bytes)
        os.fsync(file.fileno())
    for weight in lowered.weights:
        tensor = lowered.model.graph.initializers[weight.name]
        dtype = ir.DataType.from_numpy(np.dtype(weight.dtype))
        tensor.const_value = ir.ExternalTensor(
            data.name, offsets[weight.name], weight.bytes, dtype, shape=ir.Shape(weight.shape), name=weight.name
        )
    onnx.save_model(ir.to_proto(lowered.model), path)


def _write(
    descriptor: int, weight: Weight, offset: int, read: Callable[[str], np.ndarray], on_bytes: Callable[[int], None]
) -> None:
    """Parts are stacked along axis 0, so each is one contiguous run of the file."""
    end = offset + weight.bytes
    for key in weight.parts:
        array = np.ascontiguousarray(read(key), dtype=weight.dtype)
        if len(weight.parts) == 1:
            array = array.reshape(weight.shape) if array.size * array.itemsize == weight.bytes else array
        if array.shape[1:] != weight.shape[1:] or offset + array.nbytes > end:
            raise BuildError(
                f"tensor {key} has shape {list(array.shape)}, which does not fit {weight.name} {list(weight.shape)}",
                why="config.json and the weights disagree",
                fix="use the config.json that belongs to these weights",
            )
        view = array.reshape(-1).view(np.uint8).data
        while view:
            written = os.pwrite(descriptor, view[: 1 << 26], offset)
            view, offset = view[written:], offset + written
            on_bytes(written)
    if offset != end:
        raise BuildError(f"{weight.name} is incomplete", why=f"{', '.join(weight.parts)} hold too few numbers")
