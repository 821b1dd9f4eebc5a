"""What a lowered graph itself says of its products: how each weight is stored, and in which type it is multiplied."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from .rules import is_weight

_PRODUCTS = ("MatMul", "Gemm", "FusedMatMul", "MoE", "SparseExperts", "TRT_MoE")
_STACKED = ("MoE", "SparseExperts", "TRT_MoE")  # hold both products of their experts
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_CARRIERS = ("Transpose", "Reshape", "Identity", "Slice", "Squeeze", "Unsqueeze", "DequantizeLinear")


@dataclass(frozen=True)
class Matmul:
    """A product of the graph with ``numbers`` weights. Types go by their ONNX names in small letters.

    ``computed`` is ``float8e4m3fn`` where both factors come straight from it: then a backend can multiply in it.
    """

    weight: str
    op: str
    stored: str
    computed: str
    numbers: int


def matmuls(model: ir.Model) -> tuple[Matmul, ...]:
    """Every product with weights, in the order of the graph. Products of two computed factors are not among them."""
    found = []
    for node in model.graph:
        if node.op_type in _STACKED:
            found += [_stacked(node, value) for value in node.inputs if _rank(value) > 2]
        elif node.op_type in _PRODUCTS:
            weight = next((value for value in reversed(node.inputs[:2]) if source(value) is not None), None)
            if weight is not None:
                found.append(_product(node, weight))
    return tuple(dict.fromkeys(found))


def source(value: ir.Value | None) -> ir.Value | None:
    """The weight that ``value`` is, turned or scaled; None if it is computed from anything else."""
    while value is not None and not is_weight(value):
        node = value.producer()
        value = node.inputs[0] if node is not None and node.op_type in _CARRIERS else None
    return value


def _product(node: ir.Node, factor: ir.Value) -> Matmul:
    other = node.inputs[1] if factor is node.inputs[0] else node.inputs[0]
    narrow = _narrow(factor) and _narrow(other)
    return _matmul(node, factor, "float8e4m3fn" if narrow else _type(node, factor))


def _stacked(node: ir.Node, factor: ir.Value) -> Matmul:
    narrow = _narrow(factor) and _narrow(node.inputs[0])
    return _matmul(node, factor, "float8e4m3fn" if narrow else _type(node, factor))


def _matmul(node: ir.Node, factor: ir.Value, computed: str) -> Matmul:
    weight: Any = source(factor)
    tensor = weight.const_value
    size = math.prod(int(dim) for dim in tensor.shape)
    return Matmul(str(weight.name), node.op_type, _name(tensor.dtype), computed, size)


def _rank(value: ir.Value | None) -> int:
    weight = source(value)
    return 0 if weight is None else len(weight.const_value.shape)


def _narrow(value: ir.Value | None) -> bool:
    """Whether ``value`` holds E4M3 numbers times a scale, and nothing was done to them since but moving."""
    while value is not None and (node := value.producer()) is not None and node.op_type in _CARRIERS:
        if node.op_type == "DequantizeLinear":
            return bool(node.inputs[0].dtype == ir.DataType.FLOAT8E4M3FN)
        value = node.inputs[0]
    return False


def _type(node: ir.Node, factor: ir.Value) -> str:
    """Of what is multiplied where that is not E4M3: a type that is known of the node, or of the weight on its way."""
    known = [value.dtype for value in (*node.inputs, *node.outputs) if value is not None]
    value: ir.Value | None = factor
    while value is not None and (before := value.producer()) is not None:
        known.append(value.dtype)
        value = before.inputs[0]
    floats = [dtype for dtype in known if dtype in _FLOATS]
    return _name(floats[0]) if floats else ""


def _name(dtype: ir.DataType) -> str:
    name = str(dtype.name).lower()
    return {"float": "float32"}.get(name, name)
