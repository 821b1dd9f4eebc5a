"""Microscaling (MXFP8) for TensorRT: ``TRT_MXFP8DynamicQuantize`` and ``TRT_MXFP8DequantizeLinear``.

TensorRT's parser recognizes these nodes by their op type, and requires scales as bytes with E8M0 exponents. The
function bodies are for ONNX Runtime.
"""

from __future__ import annotations

import onnx.parser
import onnx_ir as ir

from ....plugins.number_types import MX_BLOCK
from ....plugins.op_spec import DOMAIN
from ....plugins.ops.microscaled_round.body import SCALES
from ...node_tape import Nodes
from ...quantization.qdq_nodes import exponents

TRT = "trt"
_QUANTIZE, _DEQUANTIZE = "TRT_MXFP8DynamicQuantize", "TRT_MXFP8DequantizeLinear"
_HEAD = f'<opset_import: ["" : 24], domain: "{TRT}">'

# Cast targets: 1 float32, 2 uint8, 17 float8e4m3fn. Blocks keep the positions of their values.
_QUANTIZE_BODY = f"""{_HEAD}
{_QUANTIZE} <axis, block_size, output_dtype> (x) => (codes, exponents) {{{SCALES}
  quotients = Div(blocks, scale)
  shape = Shape(x)
  together = Reshape(quotients, shape)
  codes = Cast<to = 17>(together)
  natural = Log(scale)
  ln_2 = Constant<value_float = 0.693147182464599609375>()
  inexact = Div(natural, ln_2)
  exponent = Round(inexact)
  bias = Constant<value_float = 127.0>()
  biased = Add(exponent, bias)
  bytes = Cast<to = 2>(biased)
  exponents = Squeeze(bytes, inferred)
}}"""

_DEQUANTIZE_BODY = f"""{_HEAD}
{_DEQUANTIZE} <axis, block_size, output_dtype> (codes, exponents) => (y) {{
  biased = Cast<to = 1>(exponents)
  bias = Constant<value_float = 127.0>()
  exponent = Sub(biased, bias)
  two = Constant<value_float = 2.0>()
  scales = Pow(two, exponent)
  y = DequantizeLinear<axis: int = @axis, block_size: int = @block_size, output_dtype: int = @output_dtype>(
    codes, scales)
}}"""


def apply(model: ir.Model) -> None:
    """Rewrite every input that is quantized in blocks, and every weight stored that way, in place."""
    is_microscaled = False
    for node in tuple(model.graph):
        op = Nodes()
        if node.domain == DOMAIN and node.op_type == "MicroscaledRound":
            y = _round(op, node)
        elif (powers := exponents(node)) is not None:
            y = _dequantize(op, node.inputs[0], powers, node.outputs[0])
        else:
            continue
        is_microscaled = True
        ir.convenience.replace_nodes_and_values(model.graph, node, [node], op.nodes, node.outputs, [y])
    if is_microscaled:
        model.opset_imports[TRT] = 1
        for text in (_QUANTIZE_BODY, _DEQUANTIZE_BODY):
            function = ir.serde.deserialize_function(onnx.parser.parse_function(text))
            model.functions[function.identifier()] = function


def _round(op: Nodes, node: ir.Node) -> ir.Value:
    x, y = node.inputs[0], node.outputs[0]
    e4m3 = ir.DataType.FLOAT8E4M3FN
    attributes = {"axis": -1, "block_size": MX_BLOCK, "output_dtype": e4m3}
    codes, scales = op.op_multi_out(_QUANTIZE, [x], attributes, domain=TRT, num_outputs=2)
    codes.shape, codes.type, scales.type = y.shape, ir.TensorType(e4m3), ir.TensorType(ir.DataType.UINT8)
    return _dequantize(op, codes, scales, y)


def _dequantize(op: Nodes, codes: ir.Value | None, scales: ir.Value, y: ir.Value) -> ir.Value:
    """Recreate ``y`` from codes and the exponents of their scales."""
    attributes = {"axis": -1, "block_size": MX_BLOCK, "output_dtype": y.dtype or ir.DataType.FLOAT}
    result: ir.Value = op.op(_DEQUANTIZE, [codes, scales], attributes, domain=TRT)
    result.shape, result.type = y.shape, y.type
    return result
