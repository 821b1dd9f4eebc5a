"""Lowerings ``tensorrt`` and ``tensorrt-sm100``: what TensorRT's parser takes and its fused kernels serve.

Attention and cache writes become standard opset-24 nodes; routed experts their dense body inlined (TensorRT's parser is
not known to tell overloads of one function apart), or TensorRT's layer for them where the GPU has it; what is rounded
in blocks TensorRT's nodes for MXFP8. What is left of our domain stays one node each: a plugin in TensorRT, its function
body in ONNX Runtime. Graphs are traced in float16 or bfloat16: TensorRT has no attention kernel for float32, which
serves to compare these lowerings with ``std``.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from ....plugins.op_spec import DOMAIN, SELECTION
from .. import std
from . import attention, experts, mxfp8

__all__ = ["apply"]


def apply(model: ir.Model, *, expert_layer: bool) -> None:
    """Rewrite a graph in place; ``expert_layer`` is for SM 10.x, the only GPUs with TensorRT's layer of experts."""
    attention.apply(model)
    if expert_layer:
        experts.apply(model)
    mxfp8.apply(model)
    std.apply(model)
    common.InlinePass(lambda function: function.name == "SparseExperts")(model)
    _select_plugins(model)


def _select_plugins(model: ir.Model) -> None:
    """Mark every node of our domain. Without the mark the body wins, with it and without the plugin again the body."""
    for node in model.graph.all_nodes():
        if node.domain == DOMAIN:
            for name, value in SELECTION.items():
                node.attributes[name] = ir.AttrString(name, value)
