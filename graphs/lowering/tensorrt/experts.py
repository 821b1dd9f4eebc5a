"""Routed experts for TensorRT: its own layer, the ONNX node ``TRT_MoE``, which computes only those a token has.

TensorRT 11 makes code for it on SM 10.x alone. The parser keys on the op type and leaves the function body, which is
there for ONNX Runtime, aside. Weights stay as they are stored and shared with the semantic graph: what turns them into
the layer's layout is arithmetic on constants, which TensorRT does while it builds.
"""

from __future__ import annotations

import onnx.parser
import onnx_ir as ir

from ....plugins.op_spec import DOMAIN
from ....plugins.ops.sparse_experts.body import combining, gating
from ...node_tape import Nodes
from ...quantization.rewrite_rules import inner_codes

TRT = "trt"
_OP = "TRT_MoE"
_SILU = 1  # of the attribute activation_type
_END = 2**62
_SWIGLU = {"swiglu_alpha": 1.0, "swiglu_beta": 0.0, "swiglu_limit": 0.0}  # what the layer computes unless told

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

_DOWN = """
  back = MatMul(inner, down)
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
    """Rewrite every layer of experts in place, but those that round between their products: TensorRT's cannot."""
    for node in tuple(model.graph):
        if node.domain == DOMAIN and node.op_type == "SparseExperts" and not inner_codes(node):
            _rewrite(model, node)
            model.opset_imports[TRT] = 1


def _rewrite(model: ir.Model, node: ir.Node) -> None:
    x, experts, scores, gate_up, down, *biases = node.inputs
    alpha, beta, limit = (node.attributes[name].as_float() for name in ("alpha", "beta", "limit"))
    op = Nodes()
    # A token is a row of its own, not a place in a sequence: the layer is made for short sequences.
    rows = [op.Unsqueeze(value, op.constant([1])) for value in (x, op.Cast(experts, to=ir.DataType.INT32), scores)]
    weights = [op.Transpose(half, perm=[0, 2, 1]) for half in _halves(op, gate_up)]
    weights.append(op.Transpose(down, perm=[0, 2, 1]))
    if biases:
        weights += [*_halves(op, biases[0]), biases[1]]
    # The parser asks for a SwiGLU of other numbers as soon as it sees one of these.
    numbers = {"swiglu_alpha": alpha, "swiglu_beta": beta, "swiglu_limit": limit}
    attributes: dict[str, float] = {"activation_type": _SILU}
    attributes |= {name: number for name, number in numbers.items() if number != _SWIGLU[name]}
    function = ir.serde.deserialize_function(onnx.parser.parse_function(_body(bool(biases), bool(limit))))
    mixed = op.op(_OP, [*rows, *weights], attributes, domain=TRT, overload=function.overload)
    y = op.Squeeze(mixed, op.constant([1]))
    model.functions[function.identifier()] = function
    ir.convenience.replace_nodes_and_values(model.graph, node, [node], op.nodes, node.outputs, [y])


def _halves(op: Nodes, stacked: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Gate and up, which alternate along axis 1."""
    axis, step, end = (op.constant([number]) for number in (1, 2, _END))
    gate, up = (op.Slice(stacked, op.constant([first]), end, axis, step) for first in (0, 1))
    return gate, up


def _body(biased: bool, limited: bool) -> str:
    """The layer in plain ops, every expert on every token; the overload names the form."""
    overload = "_".join(["dense", *["bias"] * biased, *["limited"] * limited])
    inputs = "hidden, experts, scores, gate, up, down" + ", gate_bias, up_bias, down_bias" * biased
    attributes = "activation_type" + "".join(
        f", {name}: float = {_SWIGLU[name]}" for name in ("swiglu_alpha", "swiglu_beta")
    )
    attributes += ", swiglu_limit" * limited
    nodes = [
        _FLAT,
        _BIASED_PRODUCTS if biased else _PRODUCTS,
        gating("gate_out", "up_out", limited=limited, prefix="swiglu_"),
        _DOWN,
        _BIASED_BACK if biased else _BACK,
        combining("gate", "chosen", "shares", "out"),
        _SUM,
    ]
    return f"""<opset_import: ["" : 24], domain: "{TRT}", overload: "{overload}">
{_OP} <{attributes}> ({inputs}) => (y) {{{"".join(nodes)}}}"""
