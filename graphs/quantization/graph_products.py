"""Matmuls of a lowered graph: the storage and compute type of each weight."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from ...plugins.number_types import BY_ONNX, FLOAT32, INT4, INT8, UINT4, UINT8
from ...plugins.ops.quantized_linear.packed_weights import BLOCK, TILE
from .expert_stacks import codes_of
from .rewrite_rules import inner_codes, is_weight

_PRODUCTS = ("MatMul", "Gemm", "FusedMatMul")
_STACKED = ("MoE", "SparseExperts")  # contain both matmuls of their experts
_LAYER = "TRT_MoE"  # TensorRT's own layer, also with both, but with separate gate and up
_KERNELS = ("MatMulNBits", "QMoE")  # ONNX Runtime kernels that read codes
_PACKED = "QuantizedLinear"  # this project's kernel that reads codes
_PACKED_EXPERTS = "QuantizedExperts"  # the same for both matmuls of routed experts
_OF_BLOCKS = {"Mxfp4GateUp": 2, "Mxfp4Down": 3}  # the same for MXFP4 as stored, with the places of their codes
_WIDE = "WideLinear"  # this project's kernel for unquantized matrices
_WIDE_EXPERTS = "WideExperts"  # the same for both matmuls of routed experts
_IN_INT8 = 4  # the accuracy level at which ONNX Runtime's kernels quantize the other factor as well
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_SCALED = ("DequantizeLinear", "TRT_MXFP8DequantizeLinear")
_CARRIERS = ("Transpose", "Reshape", "Identity", "Slice", "Squeeze", "Unsqueeze", *_SCALED)
_MOVED = (*_CARRIERS, "Cast", "CastLike")  # between wide types
_AROUND_ZERO = {UINT8: INT8, UINT4: INT4}


@dataclass(frozen=True)
class GraphProduct:
    """A matmul of the graph with ``numbers`` weight values. Types are lowercase ONNX names.

    ``computed`` is a quantized type if both factors are directly dequantized from it, so that a backend can compute in
    it. Unsigned codes with a zero point in the middle count as the signed type. ``packed`` is the format of a matrix
    for this project's kernels; the bits of its codes are those of ``stored``.
    """

    weight: str
    op: str
    stored: str
    computed: str
    numbers: int
    packed: str = ""


def products_of(model: ir.Model) -> tuple[GraphProduct, ...]:
    """Return every matmul with weights, in graph order, without matmuls of two computed factors."""
    products = []
    for node in model.graph:
        if node.op_type in _KERNELS:
            products += _of_kernel(node)
        elif node.op_type == _PACKED:
            products.append(_of_packed(node, 1, "format", node.attributes["rows"].as_int()))
        elif node.op_type == _PACKED_EXPERTS:
            inner, hidden = (node.attributes[name].as_int() for name in ("inner", "hidden"))
            products.append(_of_packed(node, 3, "gate_up_format", 2 * inner))
            products.append(_of_packed(node, 5, "down_format", hidden))
        elif node.op_type in _OF_BLOCKS:
            products.append(_of_blocks(node, _OF_BLOCKS[node.op_type]))
        elif node.op_type == _WIDE:
            products.append(_of_wide(node, 1, node.attributes["rows"].as_int()))
        elif node.op_type == _WIDE_EXPERTS:
            products.append(_of_wide(node, 3, 2 * node.attributes["inner"].as_int()))
            products.append(_of_wide(node, 4, node.attributes["hidden"].as_int()))
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
    """Return the weight that ``value`` is, possibly transposed or scaled; None if it is computed otherwise."""
    while value is not None and not is_weight(value):
        node = value.producer()
        value = node.inputs[0] if node is not None and node.op_type in _CARRIERS else None
    return value


def _of_kernel(node: ir.Node) -> list[GraphProduct]:
    """Return the matmuls of a kernel with codes in bytes, one of eight bits or two of four, as its attributes say."""
    level = node.attributes.get_int("accuracy_level", 0)
    indices = (1,) if node.op_type == "MatMulNBits" else (2, 5)
    bits = node.attributes.get_int("bits" if node.op_type == "MatMulNBits" else "expert_weight_bits", 4)
    products = []
    for weight in (node.inputs[index] for index in indices):
        if weight is not None and is_weight(weight):
            tensor: Any = weight.const_value
            numbers = math.prod(int(dim) for dim in tensor.shape) * 8 // bits
            computed = "int8" if level == _IN_INT8 else _type(node, weight)
            products.append(GraphProduct(str(weight.name), node.op_type, f"int{bits}", computed, numbers))
    return products


def _of_packed(node: ir.Node, index: int, format: str, rows: int) -> GraphProduct:
    """Return the matmul of a packed matrix, or of a stack of them; the kernel quantizes the other factor to int8."""
    codes: Any = node.inputs[index]
    format_name = node.attributes[format].as_string()
    bits = 8 * int(codes.shape[-1]) // (TILE * BLOCK)
    stacked = [int(dim) for dim in codes.shape[:-3]]
    numbers = math.prod(stacked) * rows * int(codes.shape[-2]) * BLOCK
    return GraphProduct(str(codes.name), node.op_type, f"int{bits}", "int8", numbers, format_name)


def _of_blocks(node: ir.Node, index: int) -> GraphProduct:
    """Return the matmul of a stack of MXFP4 blocks; the kernel multiplies and adds in float32."""
    codes: Any = node.inputs[index]
    numbers = 2 * math.prod(int(dim) for dim in codes.shape)
    return GraphProduct(str(codes.name), node.op_type, INT4.name, FLOAT32.name, numbers, "mxfp4")


def _of_wide(node: ir.Node, index: int, rows: int) -> GraphProduct:
    """Return the matmul of a packed float32 matrix, or of a stack; padding rows of the last tile do not count."""
    matrix: Any = node.inputs[index]
    stacked = [int(dim) for dim in matrix.shape[:-3]]
    numbers = math.prod(stacked) * rows * int(matrix.shape[-2])
    return GraphProduct(str(matrix.name), node.op_type, _name(matrix.dtype), _name(matrix.dtype), numbers)


def _product(node: ir.Node, factor: ir.Value) -> GraphProduct:
    other = node.inputs[1] if factor is node.inputs[0] else node.inputs[0]
    return _described(node, factor, _same_codes(factor, other) or _type(node, factor))


def _stacked(node: ir.Node, factor: ir.Value) -> GraphProduct:
    """Return the matmul of stacked weights. The second input is inside the node, and wide unless set otherwise."""
    if factor is not next(value for value in node.inputs[1:] if _rank(value) > 2):
        kind = _codes(factor)
        codes = inner_codes(node) if kind is not None and inner_codes(node).replace("_", "") == _name(kind) else ""
        return _described(node, factor, codes.replace("_", "") or _type(node, factor))
    return _described(node, factor, _same_codes(factor, node.inputs[0]) or _type(node, factor))


def _of_layer(node: ir.Node) -> list[GraphProduct]:
    """Return the gate, up and down matmuls. They are in codes if these are dequantized directly before the node.

    The input of the second matmul is quantized inside the node, if so configured.
    """
    x, gate, up, down = (node.inputs[index] for index in (0, 3, 4, 5))
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
    """Return the type of the codes that all of them are dequantized from; empty if there is none."""
    kinds = {_codes(factor) for factor in factors}
    return _name(kind) if len(kinds) == 1 and (kind := kinds.pop()) is not None else ""


def _codes(value: ir.Value | None) -> ir.DataType | None:
    """Return the type of the codes that a value was dequantized from and since only moved."""
    while value is not None and (node := value.producer()) is not None:
        if node.op_type == "MicroscaledRound":
            return ir.DataType.FLOAT8E4M3FN
        if node.op_type in _SCALED:
            return _dtype(node.inputs[0])
        value = node.inputs[0] if node.op_type in _MOVED else None
    return None


def _dtype(codes: ir.Value | None) -> ir.DataType | None:
    """Return the type of ``codes``; values from a function body have none of their own."""
    maker = codes.producer() if codes is not None else None
    if codes is None or codes.dtype is not None or maker is None or "output_dtype" not in maker.attributes:
        return None if codes is None else codes.dtype
    return ir.DataType(maker.attributes["output_dtype"].as_int())


def _type(node: ir.Node, factor: ir.Value) -> str:
    """Return the compute type if it is not E4M3: from the node, or from the type of the weight on its way."""
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
