"""Nodes that express quantization, and their initializers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ...plugins.number_types import BY_NUMPY, E8M0_BIAS
from ...plugins.op_spec import DOMAIN
from ..node_tape import Nodes
from .quantized_weight import MIDDLE, Codes, QuantizedWeight, Rounding


def onnx_type(codes: Codes) -> ir.DataType:
    """Return the ONNX type of the codes."""
    return ir.DataType(BY_NUMPY[codes].onnx)


def streamed(graph: ir.Graph, name: str, shape: tuple[int, ...], dtype: ir.DataType) -> ir.Value:
    """Create an initializer that gets its values when weights are attached."""
    value = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))
    value.const_value = ir.ExternalTensor("weights", None, None, dtype, shape=ir.Shape(shape), name=name)
    graph.register_initializer(value)
    return value


def code_shape(weight: QuantizedWeight, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the initializer with the codes of a weight of ``shape``, padded to whole blocks."""
    return (*shape[:-1], weight.scale[-1] * weight.block) if weight.block else shape


def scale_shape(weight: QuantizedWeight) -> tuple[int, ...]:
    """Return the shape of the initializer with the scales, which backends need directly before DequantizeLinear."""
    return weight.scale if weight.block or len(weight.scale) < 2 else (*weight.scale, 1)


def scale_dtype(weight: QuantizedWeight, wide: ir.DataType) -> ir.DataType:
    """Return the type of the initializer with the scales; ``wide`` is the type of the weight's values."""
    if weight.powers:
        return ir.DataType.UINT8
    return wide if weight.block else ir.DataType.FLOAT


def dequantized(op: Nodes, codes: ir.Value, scales: ir.Value, weight: QuantizedWeight, dtype: ir.DataType) -> ir.Value:
    """Create the node that dequantizes a weight to ``dtype``; ``scales`` are in their stored form."""
    name, shape = str(codes.name), codes.shape
    rank, leading = len(shape), len(weight.scale)
    attributes: dict[str, int] = {}
    if weight.block:
        attributes = {"axis": rank - 1, "block_size": weight.block}
    elif leading == 1:
        attributes = {"axis": 0}
    elif leading:  # for every row of every matrix: a block is a row
        attributes = {"axis": rank - 1, "block_size": int(shape[rank - 1])}
    if weight.powers:
        scales = _powers(op, scales)
    zero = [_middle(op, scales, MIDDLE[weight.codes], codes.dtype)] if weight.codes in MIDDLE else []
    result = op.DequantizeLinear(codes, scales, *zero, output_dtype=dtype, **attributes)
    return _described(result, f"{name}.wide", shape, dtype)


def exponents(node: ir.Node) -> ir.Value | None:
    """Return the exponents behind the scales of a DequantizeLinear created here; None if it uses plain scales."""
    power = node.inputs[1].producer() if node.op_type == "DequantizeLinear" and node.inputs[1] is not None else None
    if power is None or power.op_type != "Pow" or power.inputs[1] is None:
        return None
    value: ir.Value | None = power.inputs[1]
    while value is not None and value.dtype != ir.DataType.UINT8:
        node_before = value.producer()
        value = node_before.inputs[0] if node_before is not None else None
    return value


def rounded(op: Nodes, graph: ir.Graph, x: ir.Value, rounding: Rounding) -> ir.Value:
    """Quantize and dequantize ``x``: a pair of nodes, or one custom node, which a backend fuses into the reader.

    An incomplete last block of ``x`` is padded, and stays padded: the reader has as many rows.
    """
    if rounding.scale is None:
        x = _padded_to_blocks(op, x, rounding.block)
        return _described(op.op("MicroscaledRound", [x], domain=DOMAIN), f"{x.name}.rounded", x.shape, x.dtype)
    dtype = onnx_type(rounding.codes)
    factor = scalar(graph, f"{x.name}_scale", rounding.scale)
    codes = _described(op.QuantizeLinear(x, factor, output_dtype=dtype), f"{x.name}.codes", x.shape, dtype)
    result = op.DequantizeLinear(codes, factor, output_dtype=x.dtype)
    return _described(result, f"{x.name}.rounded", x.shape, x.dtype)


def shortened(op: Nodes, value: ir.Value, columns: int) -> ir.Value:
    """Return the first ``columns`` of every row; ``value`` itself if it has no more."""
    shape = value.shape
    if shape is None or shape[-1] == columns:
        return value
    result = op.Slice(value, op.constant([0]), op.constant([columns]), op.constant([-1]))
    return _described(result, f"{value.name}.short", ir.Shape([*shape[:-1], columns]), value.dtype)


def _padded_to_blocks(op: Nodes, x: ir.Value, block: int) -> ir.Value:
    """Pad every row of ``x`` with zeros to whole blocks."""
    columns = x.shape[-1] if x.shape is not None else None
    if not isinstance(columns, int) or not columns % block:
        return x
    result = op.Pad(x, op.constant([0, -columns % block]), None, op.constant([-1]))
    shape = ir.Shape([*x.shape[:-1], columns + -columns % block])
    return _described(result, f"{x.name}.whole", shape, x.dtype)


def _powers(op: Nodes, codes: ir.Value) -> ir.Value:
    """Return the powers of two of the stored exponents, float32."""
    wide = op.Cast(codes, to=ir.DataType.FLOAT)
    exponent = op.Sub(wide, op.constant(float(E8M0_BIAS), ir.DataType.FLOAT))
    power = op.Pow(op.constant(2.0, ir.DataType.FLOAT), exponent)
    return _described(power, f"{codes.name}.powers", codes.shape, ir.DataType.FLOAT)


def _middle(op: Nodes, scales: ir.Value, middle: int, dtype: ir.DataType) -> ir.Value:
    """Create a zero point for every scale in the graph: stored, it would be as large as the scales."""
    fill = ir.tensor(np.array([middle], np.uint8))
    zero = op.ConstantOfShape(op.Shape(scales), value=fill)
    return zero if dtype == ir.DataType.UINT8 else op.Cast(zero, to=dtype)


def scalar(graph: ir.Graph, name: str, number: float) -> ir.Value:
    """Create a float32 initializer with its value."""
    value = ir.Value(name=name, shape=ir.Shape([]), type=ir.TensorType(ir.DataType.FLOAT))
    value.const_value = ir.tensor(np.array(number, np.float32), name=name)
    graph.register_initializer(value)
    return value


def _described(value: ir.Value, name: str, shape: ir.Shape | None, dtype: ir.DataType) -> ir.Value:
    value.name, value.shape, value.type = name, shape, ir.TensorType(dtype)
    return value
