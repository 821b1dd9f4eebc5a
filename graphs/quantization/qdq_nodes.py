"""The nodes that quantized types are spelled with, and the initializers that they read."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ...plugins.number_types import BY_NUMPY, E8M0_BIAS
from ...plugins.op_spec import DOMAIN
from ..node_tape import Nodes
from .quantized_weight import MIDDLE, Codes, QuantizedWeight, Rounding


def onnx_type(codes: Codes) -> ir.DataType:
    """The ONNX type of the codes."""
    return ir.DataType(BY_NUMPY[codes].onnx)


def streamed(graph: ir.Graph, name: str, shape: tuple[int, ...], dtype: ir.DataType) -> ir.Value:
    """An initializer that gets its values when weights are attached."""
    value = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))
    value.const_value = ir.ExternalTensor("weights", None, None, dtype, shape=ir.Shape(shape), name=name)
    graph.register_initializer(value)
    return value


def code_shape(weight: QuantizedWeight, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the initializer that holds the codes of a weight of ``shape``: every block is whole."""
    return (*shape[:-1], weight.scale[-1] * weight.block) if weight.block else shape


def scale_shape(weight: QuantizedWeight) -> tuple[int, ...]:
    """The shape of the initializer that holds the scales: a backend wants no node between it and what it scales."""
    return weight.scale if weight.block or len(weight.scale) < 2 else (*weight.scale, 1)


def scale_dtype(weight: QuantizedWeight, wide: ir.DataType) -> ir.DataType:
    """The type of the initializer that holds the scales; ``wide`` is the type of the weight's values."""
    if weight.powers:
        return ir.DataType.UINT8
    return wide if weight.block else ir.DataType.FLOAT


def dequantized(op: Nodes, codes: ir.Value, scales: ir.Value, weight: QuantizedWeight, dtype: ir.DataType) -> ir.Value:
    """The node that gives a weight's values as ``dtype``; ``scales`` are as they are stored."""
    name, shape = str(codes.name), codes.shape
    rank, leading = len(shape), len(weight.scale)
    attributes: dict[str, int] = {}
    if weight.block:
        attributes = {"axis": rank - 1, "block_size": weight.block}
    elif leading == 1:
        attributes = {"axis": 0}
    elif leading:  # of every row of every matrix: a block is a row
        attributes = {"axis": rank - 1, "block_size": int(shape[rank - 1])}
    if weight.powers:
        scales = _powers(op, scales)
    zero = [_middle(op, scales, MIDDLE[weight.codes], codes.dtype)] if weight.codes in MIDDLE else []
    result = op.DequantizeLinear(codes, scales, *zero, output_dtype=dtype, **attributes)
    return _described(result, f"{name}.wide", shape, dtype)


def exponents(node: ir.Node) -> ir.Value | None:
    """The exponents that a DequantizeLinear made here has its scales from; None where it keeps scales themselves."""
    power = node.inputs[1].producer() if node.op_type == "DequantizeLinear" and node.inputs[1] is not None else None
    if power is None or power.op_type != "Pow" or power.inputs[1] is None:
        return None
    value: ir.Value | None = power.inputs[1]
    while value is not None and value.dtype != ir.DataType.UINT8:
        node_before = value.producer()
        value = node_before.inputs[0] if node_before is not None else None
    return value


def rounded(op: Nodes, graph: ir.Graph, x: ir.Value, rounding: Rounding) -> ir.Value:
    """Round ``x`` to codes and back: a pair of nodes, or one node of ours, which a backend folds into what reads it.

    A last block of ``x`` that is not whole is made so, and stays it: what reads it has as many rows.
    """
    if rounding.scale is None:
        x = _whole(op, x, rounding.block)
        return _described(op.op("MicroscaledRound", [x], domain=DOMAIN), f"{x.name}.rounded", x.shape, x.dtype)
    dtype = onnx_type(rounding.codes)
    factor = _constant(graph, f"{x.name}_scale", rounding.scale)
    codes = _described(op.QuantizeLinear(x, factor, output_dtype=dtype), f"{x.name}.codes", x.shape, dtype)
    result = op.DequantizeLinear(codes, factor, output_dtype=x.dtype)
    return _described(result, f"{x.name}.rounded", x.shape, x.dtype)


def shortened(op: Nodes, value: ir.Value, columns: int) -> ir.Value:
    """The first ``columns`` of every row; ``value`` itself where there are no more."""
    shape = value.shape
    if shape is None or shape[-1] == columns:
        return value
    result = op.Slice(value, op.constant([0]), op.constant([columns]), op.constant([-1]))
    return _described(result, f"{value.name}.short", ir.Shape([*shape[:-1], columns]), value.dtype)


def _whole(op: Nodes, x: ir.Value, block: int) -> ir.Value:
    """Put zeros behind every row of ``x``, so that it ends with a block."""
    columns = x.shape[-1] if x.shape is not None else None
    if not isinstance(columns, int) or not columns % block:
        return x
    result = op.Pad(x, op.constant([0, -columns % block]), None, op.constant([-1]))
    shape = ir.Shape([*x.shape[:-1], columns + -columns % block])
    return _described(result, f"{x.name}.whole", shape, x.dtype)


def _powers(op: Nodes, codes: ir.Value) -> ir.Value:
    """The powers of two with the exponents that are stored, float32."""
    wide = op.Cast(codes, to=ir.DataType.FLOAT)
    exponent = op.Sub(wide, op.constant(float(E8M0_BIAS), ir.DataType.FLOAT))
    power = op.Pow(op.constant(2.0, ir.DataType.FLOAT), exponent)
    return _described(power, f"{codes.name}.powers", codes.shape, ir.DataType.FLOAT)


def _middle(op: Nodes, scales: ir.Value, middle: int, dtype: ir.DataType) -> ir.Value:
    """A zero point for every scale, made where it is needed: it would take as much room as the scales."""
    fill = ir.tensor(np.array([middle], np.uint8))
    zero = op.ConstantOfShape(op.Shape(scales), value=fill)
    return zero if dtype == ir.DataType.UINT8 else op.Cast(zero, to=dtype)


def _constant(graph: ir.Graph, name: str, number: float) -> ir.Value:
    """An initializer that has its value already."""
    value = ir.Value(name=name, shape=ir.Shape([]), type=ir.TensorType(ir.DataType.FLOAT))
    value.const_value = ir.tensor(np.array(number, np.float32), name=name)
    graph.register_initializer(value)
    return value


def _described(value: ir.Value, name: str, shape: ir.Shape | None, dtype: ir.DataType) -> ir.Value:
    value.name, value.shape, value.type = name, shape, ir.TensorType(dtype)
    return value
