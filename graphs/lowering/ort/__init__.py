"""Lowering ``ort``: fused nodes for ONNX Runtime's CPU kernels.

Every rule has a pattern, a check with the reason why it does not apply, and a rewrite. Weights keep the checkpoint's
layout, so they stream unchanged, and a tied LM head needs no second copy, whether wide or in codes.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript.rewriter import RewriteRuleSet

from ...names import CONTRIB
from .attention import GroupQueryAttentionFusion, GroupQueryAttentionWithSinksFusion
from .experts import MoEFusion, QMoEFusion
from .linears import FusedMatMulFusion, GatherBlockQuantizedFusion, MatMulNBitsFusion
from .tidy import CollapseReshape, InputWidth, SameShape, SkipSimplifiedLayerNormalizationFusion, pack_linears

__all__ = ["apply"]

RULES = RewriteRuleSet(
    [
        MatMulNBitsFusion.rule(),
        GatherBlockQuantizedFusion.rule(),
        FusedMatMulFusion.rule(),
        GroupQueryAttentionFusion.rule(),
        GroupQueryAttentionWithSinksFusion.rule(),
        QMoEFusion.rule(),
        MoEFusion.rule(),
        SkipSimplifiedLayerNormalizationFusion.rule(),
    ]
)
CLEANUP = RewriteRuleSet([CollapseReshape.rule()])
SAME_SHAPE = RewriteRuleSet([SameShape.rule()])


def apply(model: ir.Model, rules: RewriteRuleSet = RULES) -> None:
    """Rewrite a semantic graph in place with ``rules``, and clean up."""
    rules.apply_to_model(model)
    CLEANUP.apply_to_model(model)
    common.RemoveUnusedNodesPass()(model)  # nodes between weights and their former readers
    RewriteRuleSet([InputWidth.rule(list(model.graph.inputs))]).apply_to_model(model)
    pack_linears(model)
    SAME_SHAPE.apply_to_model(model)
    model.opset_imports[CONTRIB] = 1
