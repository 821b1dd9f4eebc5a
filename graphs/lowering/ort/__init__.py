"""Lowering ``ort``: the fused forms that ONNX Runtime's CPU kernels are fastest at.

Every rule is a pattern, a check that says why it does not apply, and a rewrite. Weights keep the checkpoint's layout,
so they stream unchanged and a tied head needs no second copy, be it wide or of codes.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript.rewriter import RewriteRuleSet

from ...names import CONTRIB
from .attention import GroupQueryAttentionFusion, GroupQueryAttentionWithSinksFusion
from .experts import MoEFusion, QMoEFusion
from .linears import FusedMatMulFusion, GatherBlockQuantizedFusion, MatMulNBitsFusion
from .tidy import CollapseReshape, SameShape, SkipSimplifiedLayerNormalizationFusion, WidthOfTheInput, pack_linears

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
    """Rewrite a semantic graph in place, by ``rules``, and tidy what they leave."""
    rules.apply_to_model(model)
    CLEANUP.apply_to_model(model)
    common.RemoveUnusedNodesPass()(model)  # what weights were read through before
    RewriteRuleSet([WidthOfTheInput.rule(list(model.graph.inputs))]).apply_to_model(model)
    pack_linears(model)
    SAME_SHAPE.apply_to_model(model)
    model.opset_imports[CONTRIB] = 1
