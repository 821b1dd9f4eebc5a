"""The two nodes that FP8 is spelled with, and the numbers that they scale by."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..tape import Nodes
from .weight import Array

E4M3 = ir.DataType.FLOAT8E4M3FN


def narrow_weight(value: ir.Value) -> ir.DataType:
    """Make an initializer without values one of E4M3; returns the type that it had."""
    tensor = value.const_value
    before = ir.DataType(tensor.dtype)
    value.const_value = ir.ExternalTensor("weights", None, None, E4M3, shape=tensor.shape, name=value.name)
    value.type = ir.TensorType(E4M3)
    return before


def dequantized(op: Nodes, graph: ir.Graph, value: ir.Value, scale: Array, dtype: ir.DataType) -> ir.Value:
    """``value`` of E4M3 times its ``scale`` (of the leading dims), as ``dtype``."""
    name, rank = str(value.name), len(value.shape)
    if scale.ndim == 2:  # of every row of every matrix: a block is a row
        block = {"axis": rank - 1, "block_size": int(value.shape[rank - 1])}
        scale = scale[..., None]
    else:
        block = {"axis": 0} if scale.ndim else {}
    factor = constant(graph, f"{name}_scale", scale)
    result = op.DequantizeLinear(value, factor, output_dtype=dtype, **block)
    return _described(result, f"{name}.wide", value.shape, dtype)


def rounded(op: Nodes, graph: ir.Graph, x: ir.Value, scale: float) -> ir.Value:
    """``x`` to E4M3 times ``scale`` and back: one pair of nodes, which a backend folds into what reads it."""
    factor = constant(graph, f"{x.name}_scale", np.asarray(scale, np.float32))
    codes = op.QuantizeLinear(x, factor, output_dtype=E4M3)
    _described(codes, f"{x.name}.fp8", x.shape, E4M3)
    result = op.DequantizeLinear(codes, factor, output_dtype=x.dtype)
    return _described(result, f"{x.name}.rounded", x.shape, x.dtype)


def constant(graph: ir.Graph, name: str, number: Array) -> ir.Value:
    """An initializer that has its values already."""
    value = ir.Value(name=name, shape=ir.Shape(number.shape), type=ir.TensorType(ir.DataType.FLOAT))
    value.const_value = ir.tensor(np.array(number, np.float32), name=name)
    graph.register_initializer(value)
    return value


def _described(value: ir.Value, name: str, shape: ir.Shape | None, dtype: ir.DataType) -> ir.Value:
    value.name, value.shape, value.type = name, shape, ir.TensorType(dtype)
    return value
