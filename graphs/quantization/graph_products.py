"""The products of a lowered graph: how each weight is stored, and in which type it is multiplied."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from ...plugins.number_types import BY_ONNX, INT4, INT8, UINT4, UINT8
from ...plugins.ops.quantized_linear.packed_weights import BLOCK
from .expert_stacks import codes_of
from .rewrite_rules import inner_codes, is_weight

_PRODUCTS = ("MatMul", "Gemm", "FusedMatMul")
_STACKED = ("MoE", "SparseExperts")  # hold both products of their experts
_LAYER = "TRT_MoE"  # so does TensorRT's own layer, which takes gate and up apart
_KERNELS = ("MatMulNBits", "QMoE")  # of ONNX Runtime, which read codes themselves
_PACKED = "QuantizedLinear"  # ours, which does so too
_WIDE = "WideLinear"  # ours, of what is not quantized
_IN_INT8 = 4  # the accuracy level at which they round what they multiply with as well
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_SCALED = ("DequantizeLinear", "TRT_MXFP8DequantizeLinear")
_CARRIERS = ("Transpose", "Reshape", "Identity", "Slice", "Squeeze", "Unsqueeze", *_SCALED)
_MOVED = (*_CARRIERS, "Cast", "CastLike")  # from one wide type to another
_AROUND_ZERO = {UINT8: INT8, UINT4: INT4}


@dataclass(frozen=True)
class GraphProduct:
    """A product of the graph with ``numbers`` weights. Types go by their ONNX names in small letters.

    ``computed`` is a quantized type where both factors come straight from it: then a backend can multiply in it.
    Unsigned codes around their middle go by the name of signed ones.
    """

    weight: str
    op: str
    stored: str
    computed: str
    numbers: int


def products_of(model: ir.Model) -> tuple[GraphProduct, ...]:
    """Every product with weights, in the order of the graph. Products of two computed factors are not among them."""
    products = []
    for node in model.graph:
        if node.op_type in _KERNELS:
            products += _of_kernel(node)
        elif node.op_type == _PACKED:
            products.append(_of_packed(node))
        elif node.op_type == _WIDE:
            products.append(_of_wide(node))
        elif node.op_type == _LAYER:
            products += _of_layer(node)
        elif node.op_type in _STACKED:
            products += [_stacked(node, value) for value in node.inputs if _rank(value) > 2]
        elif node.op_type in _PRODUCTS:
            weight = next((value for value in reversed(node.inputs[:2]) if source(value) is not None), None)
            if weight is not None:
                products.append(_product(node, weight))
    return tuple(dict.fromkeys(products))


def source(value: ir.Value | None) -> ir.Value | None:
    """The weight that ``value`` is, turned or scaled; None if it is computed from anything else."""
    while value is not None and not is_weight(value):
        node = value.producer()
        value = node.inputs[0] if node is not None and node.op_type in _CARRIERS else None
    return value


def _of_kernel(node: ir.Node) -> list[GraphProduct]:
    """The products of a kernel whose codes lie in bytes, eight bits or two of four: the node says which."""
    level = node.attributes.get_int("accuracy_level", 0)
    places = (1,) if node.op_type == "MatMulNBits" else (2, 5)
    bits = node.attributes.get_int("bits" if node.op_type == "MatMulNBits" else "expert_weight_bits", 4)
    products = []
    for weight in (node.inputs[place] for place in places):
        if weight is not None and is_weight(weight):
            tensor: Any = weight.const_value
            numbers = math.prod(int(dim) for dim in tensor.shape) * 8 // bits
            computed = "int8" if level == _IN_INT8 else _type(node, weight)
            products.append(GraphProduct(str(weight.name), node.op_type, f"int{bits}", computed, numbers))
    return products


def _of_packed(node: ir.Node) -> GraphProduct:
    """The product of a packed matrix; what is multiplied with it is rounded to int8."""
    codes: Any = node.inputs[1]
    bits = 4 if node.attributes["format"].as_string().startswith("q4") else 8
    numbers = node.attributes["rows"].as_int() * int(codes.shape[1]) * BLOCK
    return GraphProduct(str(codes.name), node.op_type, f"int{bits}", "int8", numbers)


def _of_wide(node: ir.Node) -> GraphProduct:
    """The product of a packed matrix of float32; the rows that its last tile is filled up with are none."""
    matrix: Any = node.inputs[1]
    numbers = node.attributes["rows"].as_int() * int(matrix.shape[1])
    return GraphProduct(str(matrix.name), node.op_type, _name(matrix.dtype), _name(matrix.dtype), numbers)


def _product(node: ir.Node, factor: ir.Value) -> GraphProduct:
    other = node.inputs[1] if factor is node.inputs[0] else node.inputs[0]
    return _described(node, factor, _same_codes(factor, other) or _type(node, factor))


def _stacked(node: ir.Node, factor: ir.Value) -> GraphProduct:
    """The product of stacked weights. The input of the second is inside of the node, and wide unless that says it."""
    if factor is not next(value for value in node.inputs[1:] if _rank(value) > 2):
        kind = _codes(factor)
        codes = inner_codes(node) if kind is not None and inner_codes(node).replace("_", "") == _name(kind) else ""
        return _described(node, factor, codes.replace("_", "") or _type(node, factor))
    return _described(node, factor, _same_codes(factor, node.inputs[0]) or _type(node, factor))


def _of_layer(node: ir.Node) -> list[GraphProduct]:
    """The products of gate, up and down. They are of codes where these are dequantised directly before the node.

    What enters the second product is rounded in the node, where that is told to.
    """
    x, gate, up, down = (node.inputs[place] for place in (0, 3, 4, 5))
    inner = ir.DataType.FLOAT8E4M3FN if node.attributes.get_int("quantization_mode", 0) else None
    products = []
    for factor, other in ((gate, codes_of(x)), (up, codes_of(x)), (down, inner)):
        if factor is not None and source(factor) is not None:
            kind = codes_of(factor)
            computed = _name(kind) if kind is not None and kind == other == inner else _type(node, factor)
            products.append(_described(node, factor, computed))
    return products


def _described(node: ir.Node, factor: ir.Value, computed: str) -> GraphProduct:
    weight: Any = source(factor)
    tensor = weight.const_value
    size = math.prod(int(dim) for dim in tensor.shape)
    return GraphProduct(str(weight.name), node.op_type, _name(tensor.dtype), computed, size)


def _rank(value: ir.Value | None) -> int:
    weight = source(value)
    return 0 if weight is None else len(weight.const_value.shape)


def _same_codes(*factors: ir.Value | None) -> str:
    """The type of the codes that all of them are, times a scale; empty if they are not."""
    kinds = {_codes(factor) for factor in factors}
    return _name(kind) if len(kinds) == 1 and (kind := kinds.pop()) is not None else ""


def _codes(value: ir.Value | None) -> ir.DataType | None:
    """The type of the codes that a value was scaled from, if nothing was done to it since but moving."""
    while value is not None and (node := value.producer()) is not None:
        if node.op_type == "MicroscaledRound":
            return ir.DataType.FLOAT8E4M3FN
        if node.op_type in _SCALED:
            return _dtype(node.inputs[0])
        value = node.inputs[0] if node.op_type in _MOVED else None
    return None


def _dtype(codes: ir.Value | None) -> ir.DataType | None:
    """The type of ``codes``; values that came with the body of a function have none of their own."""
    maker = codes.producer() if codes is not None else None
    if codes is None or codes.dtype is not None or maker is None or "output_dtype" not in maker.attributes:
        return None if codes is None else codes.dtype
    return ir.DataType(maker.attributes["output_dtype"].as_int())


def _type(node: ir.Node, factor: ir.Value) -> str:
    """The type that is multiplied in where that is not E4M3: known of the node, or of the weight on its way."""
    dtypes = [value.dtype for value in (*node.inputs, *node.outputs) if value is not None]
    value: ir.Value | None = factor
    while value is not None and (before := value.producer()) is not None:
        dtypes.append(value.dtype)
        value = before.inputs[0]
    floats = [dtype for dtype in dtypes if dtype in _FLOATS]
    return _name(floats[0]) if floats else ""


def _name(dtype: ir.DataType) -> str:
    kind = BY_ONNX.get(int(dtype))
    return _AROUND_ZERO.get(kind, kind).name if kind else str(dtype.name).lower()
