"""Lowering ``cpu``: the nodes of ``ort``, with kernels of our own where there is one.

A semantic op that has a kernel stays as it is; what ONNX Runtime does in its place is not asked for. ``RULES`` are
those of ``ort`` that are left, and our own. Its graphs know trees of drafts.
"""

from __future__ import annotations

import onnx_ir as ir
from onnxscript.rewriter import RewriteRuleSet

from .. import ort, std
from ..ort.experts import MoEFusion, QMoEFusion
from ..ort.linears import FusedMatMulFusion, GatherBlockQuantizedFusion, MatMulNBitsFusion
from ..ort.tidy import SkipSimplifiedLayerNormalizationFusion
from . import trees

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
    """Rewrite a semantic graph in place; what is left of our ops has its body, for sessions without kernels."""
    trees.apply(model)
    ort.apply(model, RULES)
    std.apply(model)
