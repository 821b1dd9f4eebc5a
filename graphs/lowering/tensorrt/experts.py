"""Routed experts for TensorRT: its own layer, the ONNX node ``TRT_MoE``, which computes only the selected experts.

TensorRT 11 supports this layer only on SM 100, 103 and 110. The parser recognizes the op type and ignores the function
body, which is for ONNX Runtime. Weights in the layer's layout (``quantization.expert_stacks``) are passed as they are;
others are split and transposed by nodes over constants, which TensorRT folds while it builds.

In FP8 the layer multiplies codes with codes in both matmuls: its input and every stack are dequantized directly before
it, and the scale for the second matmul's input is a separate input.
"""

from __future__ import annotations

from typing import NamedTuple

import onnx.parser
import onnx_ir as ir

from ....plugins.op_spec import DOMAIN
from ....plugins.ops.sparse_experts.body import combining, gating
from ....plugins.ops.sparse_experts.spec import CUBIC
from ...node_tape import Nodes
from ...quantization.expert_stacks import codes_of, halves_of, transposed_of
from ...quantization.qdq_nodes import scalar
from ...quantization.rewrite_rules import inner_codes

TRT = "trt"
_OP = "TRT_MoE"
_SILU = 1  # a value of the attribute activation_type
_STATIC = {"quantization_mode": 1, "quantization_dtype": 6}  # constant scales; TensorRT's number of FP8
_CODES = ir.DataType.FLOAT8E4M3FN  # the only code type that the layer supports
_END = 2**62
_SWIGLU = {"swiglu_alpha": 1.0, "swiglu_beta": 0.0, "swiglu_limit": 0.0}  # the layer's defaults

_FLAT = """
  last = Constant<value_ints = [-1]>()
  first = Constant<value_ints = [0]>()
  shape = Shape(hidden)
  width = Shape<start = -1>(hidden)
  each = Shape<start = -1>(experts)
  by_token = Concat<axis = 0>(last, width)
  by_choice = Concat<axis = 0>(last, each)
  x = Reshape(hidden, by_token)
  chosen = Reshape(experts, by_choice)
  shares = Reshape(scores, by_choice)
"""

_PRODUCTS = """
  gate_out = MatMul(x, gate)
  up_out = MatMul(x, up)
"""

_BIASED_PRODUCTS = """
  middle = Constant<value_ints = [1]>()
  gate_product = MatMul(x, gate)
  gate_shift = Unsqueeze(gate_bias, middle)
  gate_out = Add(gate_product, gate_shift)
  up_product = MatMul(x, up)
  up_shift = Unsqueeze(up_bias, middle)
  up_out = Add(up_product, up_shift)
"""

# In float32, so that the scale keeps its precision in a graph of 16 bits.
_ROUNDED = f"""
  inner_32 = Cast<to = 1>(inner)
  inner_codes = QuantizeLinear<output_dtype = {int(_CODES)}>(inner_32, down_scale)
  inner_means = DequantizeLinear(inner_codes, down_scale)
  factor = CastLike(inner_means, x)
"""

_UNROUNDED = """
  factor = Identity(inner)
"""

_DOWN = """
  back = MatMul(factor, down)
"""

_BACK = """
  out = Identity(back)
"""

_BIASED_BACK = """
  down_shift = Unsqueeze(down_bias, middle)
  out = Add(back, down_shift)
"""

_SUM = """
  summed = ReduceSum<keepdims = 0>(weighted, first)
  y = Reshape(summed, shape)
"""


def apply(model: ir.Model) -> None:
    """Rewrite every layer of experts in place, except those that the layer does not support."""
    for node in tuple(model.graph):
        if node.domain == DOMAIN and node.op_type == "SparseExperts" and _is_supported(node):
            _rewrite(model, node)
            model.opset_imports[TRT] = 1


def _is_supported(node: ir.Node) -> bool:
    """Return True if the layer supports the node: its gate, and no quantization, or E4M3 before both matmuls."""
    if node.attributes.get_float(CUBIC.name, 0.0):  # GELU
        return False
    if not inner_codes(node):
        return True
    x, gate_up, down = (node.inputs[index] for index in (0, 3, 4))
    factors = [x, *(halves_of(gate_up) or ()), transposed_of(down)]
    return len(factors) == 4 and {codes_of(factor) for factor in factors} == {_CODES}


def _rewrite(model: ir.Model, node: ir.Node) -> None:
    x, experts, scores, gate_up, down, *biases = node.inputs
    alpha, beta, limit = (node.attributes[name].as_float() for name in ("alpha", "beta", "limit"))
    op, is_static = Nodes(), bool(inner_codes(node))
    # Each token is a separate row, not a place in a sequence: the layer is made for short sequences.
    rows = [_row(op, x), *(op.Unsqueeze(value, op.constant([1])) for value in (_int32(op, experts), scores))]
    weights = [*(halves_of(gate_up) or (_transposed(op, half) for half in _halves(op, gate_up)))]
    weights.append(transposed_of(down) or _transposed(op, down))
    if biases:
        weights += [*_halves(op, biases[0]), biases[1]]
    # The parser assumes a SwiGLU with custom parameters as soon as one of these is present.
    numbers = {"swiglu_alpha": alpha, "swiglu_beta": beta, "swiglu_limit": limit}
    attributes: dict[str, float] = {"activation_type": _SILU}
    attributes |= {name: number for name, number in numbers.items() if number != _SWIGLU[name]}
    if is_static:
        attributes |= _STATIC
        scale = node.attributes["inner_scale"].as_float()
        weights += [*([] if biases else [None] * 3), scalar(model.graph, f"{node.outputs[0].name}.down_scale", scale)]
    variant = _Form(bool(biases), bool(limit), is_static)
    function = ir.serde.deserialize_function(onnx.parser.parse_function(_body(variant)))
    mixed = op.op(_OP, [*rows, *weights], attributes, domain=TRT, overload=function.overload)
    y = op.Squeeze(mixed, op.constant([1]))
    model.functions[function.identifier()] = function
    ir.convenience.replace_nodes_and_values(model.graph, node, [node], op.nodes, node.outputs, [y])


def _row(op: Nodes, x: ir.Value) -> ir.Value:
    """Make each token a separate row; a quantized input is quantized afterwards, directly before the layer."""
    back = x.producer()
    there = back.inputs[0].producer() if back is not None and codes_of(x) is not None and back.inputs[0] else None
    if back is None or there is None or there.op_type != "QuantizeLinear":
        return op.Unsqueeze(x, op.constant([1]))
    row = op.Unsqueeze(there.inputs[0], op.constant([1]))
    codes = op.QuantizeLinear(row, *there.inputs[1:], output_dtype=_CODES)
    codes.type = ir.TensorType(_CODES)
    return op.DequantizeLinear(codes, *back.inputs[1:], output_dtype=x.dtype)


def _int32(op: Nodes, experts: ir.Value) -> ir.Value:
    return op.Cast(experts, to=ir.DataType.INT32)


def _transposed(op: Nodes, stack: ir.Value) -> ir.Value:
    return op.Transpose(stack, perm=[0, 2, 1])


def _halves(op: Nodes, stacked: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Split gate and up, which alternate along axis 1."""
    axis, step, end = (op.constant([number]) for number in (1, 2, _END))
    gate, up = (op.Slice(stacked, op.constant([first]), end, axis, step) for first in (0, 1))
    return gate, up


class _Form(NamedTuple):
    """Extensions to plain experts; ``static``: in FP8."""

    biased: bool
    limited: bool
    static: bool


def _body(variant: _Form) -> str:
    """Return the layer in plain ops, every expert on every token; the overload names the form."""
    words = [word for word, is_set in zip(("bias", "limited", "static"), variant, strict=True) if is_set]
    inputs = ["hidden", "experts", "scores", "gate", "up", "down"]
    inputs += ["gate_bias", "up_bias", "down_bias"] if variant.biased or variant.static else []
    inputs += ["down_scale"] if variant.static else []
    attributes = "activation_type" + "".join(
        f", {name}: float = {_SWIGLU[name]}" for name in ("swiglu_alpha", "swiglu_beta")
    )
    attributes += ", swiglu_limit" * variant.limited + "".join(f", {name}" for name in _STATIC if variant.static)
    nodes = [
        _FLAT,
        _BIASED_PRODUCTS if variant.biased else _PRODUCTS,
        gating("gate_out", "up_out", limited=variant.limited, prefix="swiglu_"),
        _ROUNDED if variant.static else _UNROUNDED,
        _DOWN,
        _BIASED_BACK if variant.biased else _BACK,
        combining("gate", "chosen", "shares", "out"),
        _SUM,
    ]
    return f"""<opset_import: ["" : 24], domain: "{TRT}", overload: "{"_".join(["dense", *words])}">
{_OP} <{attributes}> ({", ".join(inputs)}) => (y) {{{"".join(nodes)}}}"""
