"""Small graphs before and after a pass, with the same random weights, in ONNX Runtime."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime

from peagle.graphs.lowering.shared_passes import finish
from peagle.graphs.stream_weights import attach

F32 = ir.DataType.FLOAT


def value(name: str, shape: list[int | str], dtype: ir.DataType = F32) -> ir.Value:
    return ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))


def weight(name: str, *shape: int) -> ir.Value:
    made = value(name, list(shape))
    made.const_value = ir.ExternalTensor("weights", None, None, F32, shape=ir.Shape(shape), name=name)
    return made


def node(kind: str, inputs: list[ir.Value], shape: list[int | str], **attributes: Any) -> ir.Value:
    """The only output of a new node."""
    made = ir.node(kind, inputs, attributes).outputs[0]
    made.shape, made.type = ir.Shape(shape), ir.TensorType(F32)
    return made


def linear(x: ir.Value, matrix: ir.Value) -> ir.Value:
    """``x @ matrix.T`` of ``x`` ``[B,S,columns]``."""
    rows, columns = (int(dim) for dim in matrix.shape or ())
    turned = node("Transpose", [matrix], [columns, rows], perm=[1, 0])
    return node("MatMul", [x, turned], ["B", "S", rows])


def stored(model: ir.Model) -> dict[str, np.ndarray]:
    """Random values of every initializer that is streamed, by name."""
    values = {}
    for name, each in model.graph.initializers.items():
        if isinstance(each.const_value, ir.ExternalTensor):
            rng = np.random.default_rng(zlib.crc32(name.encode()))
            tensor = each.const_value
            shape, dtype = tuple(int(dim) for dim in tensor.shape), tensor.dtype.numpy()
            wide = rng.integers(-7, 8, shape) if tensor.dtype != F32 else rng.uniform(0.5, 1.5, shape)
            values[name] = np.asarray(rng.integers(120, 130, shape) if dtype == np.uint8 else wide).astype(dtype)
    return values


def results(
    model: ir.Model, values: Mapping[str, np.ndarray], inputs: Mapping[str, np.ndarray], folder: Path
) -> list[np.ndarray]:
    """The outputs of the graph, whose weights are streamed part by part."""
    folder.mkdir()
    attach(finish(model), lambda name: [values[name]], folder / "model.onnx")
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
    outputs: list[np.ndarray] = session.run(None, dict(inputs))
    return outputs
