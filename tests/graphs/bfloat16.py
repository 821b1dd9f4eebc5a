"""BF16 graphs on a machine without kernels for them: every node computes in float32, and its results are rounded."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

_NARROW, _WIDE = ir.DataType.BFLOAT16, ir.DataType.FLOAT


def computed_in_float32(source: Path, path: Path, shown: Iterable[str] = ()) -> Path:
    """Write a graph in bfloat16 as one that ONNX Runtime can run; values with the names ``shown`` become outputs."""
    model = ir.load(source)
    InlinePass()(model)
    for value in model.graph.initializers.values():
        value.const_value = ir.tensor(value.const_value.numpy(), name=value.name)
    graph = (model := ir.from_proto(onnx.shape_inference.infer_shapes(ir.to_proto(model)))).graph
    produced = {value.name: value for node in graph for value in node.outputs}
    graph.outputs.extend(produced[name] for name in shown)
    for value in (*graph.inputs, *graph.initializers.values()):
        if value.dtype == _NARROW:
            value.dtype = _WIDE
            if value.const_value is not None:
                value.const_value = ir.tensor(value.const_value.numpy().astype(np.float32), name=value.name)
    for node in [*graph]:
        for value in node.outputs:
            if value.dtype == _NARROW:
                _round(graph, node, value)
    ir.save(model, path)
    return path


def _round(graph: ir.Graph, node: ir.Node, value: ir.Value) -> None:
    """Give everything that reads ``value``, a result of ``node``, what bfloat16 keeps of it."""
    if node.op_type == "Cast":
        node.attributes["to"] = ir.AttrInt64("to", _WIDE)
    readers = [(use.node, use.idx) for use in value.uses()]
    narrow = ir.node("Cast", [value], {"to": _NARROW})
    wide = ir.node("Cast", narrow.outputs, {"to": _WIDE})
    graph.insert_after(node, [narrow, wide])
    found, kept = wide.outputs[0], value.name
    found.shape, found.dtype, value.dtype = value.shape, _WIDE, _WIDE
    value.name = f"{kept}.unrounded"
    found.name = kept
    for reader, index in readers:
        reader.replace_input_with(index, found)
    for index, output in enumerate(graph.outputs):
        if output is value:
            graph.outputs[index] = found
