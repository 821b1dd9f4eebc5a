"""Lowering ``cpu``: the nodes of ``ort``, with this project's own kernels where they exist.

A semantic op with a kernel is kept, instead of ONNX Runtime's replacement. ``RULES`` are the remaining rules of ``ort``
and this project's own rules. The graphs support draft trees.
"""

from __future__ import annotations

import onnx_ir as ir
from onnxscript.rewriter import RewriteRuleSet

from .. import ort, std, trees
from ..ort.experts import MoEFusion, QMoEFusion
from ..ort.linears import FusedMatMulFusion, GatherBlockQuantizedFusion, MatMulNBitsFusion
from ..ort.tidy import SkipSimplifiedLayerNormalizationFusion

__all__ = ["apply"]

RULES = RewriteRuleSet(
    [
        MatMulNBitsFusion.rule(),
        GatherBlockQuantizedFusion.rule(),
        FusedMatMulFusion.rule(),
        QMoEFusion.rule(),
        MoEFusion.rule(),
        SkipSimplifiedLayerNormalizationFusion.rule(),
    ]
)


def apply(model: ir.Model) -> None:
    """Rewrite a semantic graph in place; remaining custom ops keep their bodies, for sessions without kernels."""
    trees.apply(model)
    ort.apply(model, RULES)
    std.apply(model)
