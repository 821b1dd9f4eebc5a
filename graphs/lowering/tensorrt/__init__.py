"""Lowerings ``tensorrt`` and ``tensorrt-sm100``: nodes that TensorRT's parser and its fused kernels support.

Attention and cache writes become standard opset-24 nodes. Routed experts become their dense body, inlined (TensorRT's
parser is not known to distinguish overloads of a function), or TensorRT's own layer on GPUs that have it. Block
quantization becomes TensorRT's MXFP8 nodes. The remaining ops of this project stay one node each: a plugin in TensorRT,
a function body in ONNX Runtime. Graphs are traced in float16 or bfloat16: TensorRT has no attention kernel for float32,
which serves only to compare these lowerings with ``std``.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from ....plugins.graph_contract import SKIPPED
from ....plugins.op_spec import DOMAIN, SELECTION
from .. import std, trees
from . import attention, experts, joined_heads, joined_linears, mxfp8, routers

__all__ = ["apply"]


def apply(model: ir.Model, *, expert_layer: bool) -> None:
    """Rewrite a graph in place; ``expert_layer``: for GPUs with TensorRT's expert layer (SM 100, 103 and 110)."""
    trees.apply(model, tree_input=SKIPPED)
    # Before attention, which separates matmuls on both sides of a plugin only if they are not joined.
    joined_linears.apply(model)
    joined_heads.apply(model)
    routers.apply(model)
    # Plans of TensorRT-RTX 1.7 copy. None has been read for GPUs with the expert layer, where other kernels may read
    # caches in place.
    attention.apply(model, copies_caches=not expert_layer)
    if expert_layer:
        experts.apply(model)
    mxfp8.apply(model)
    std.apply(model)
    common.InlinePass(lambda function: function.name == "SparseExperts")(model)
    routers.apply_shares_in_sum(model)
    _select_plugins(model)


def _select_plugins(model: ir.Model) -> None:
    """Mark every node of our domain for its plugin. TensorRT uses the function body without the mark or the plugin."""
    for node in model.graph.all_nodes():
        if node.domain == DOMAIN:
            for name, value in SELECTION.items():
                node.attributes[name] = ir.AttrString(name, value)
