"""Lowering ``ort``: the fused forms that ONNX Runtime's CPU kernels are fastest at.

Every rule is a pattern, a check that says why it does not apply, and a rewrite. Weights keep the checkpoint's layout,
so they stream unchanged and a tied head needs no second copy.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript.rewriter import RewriteRuleSet

from .attention import Attention, AttentionWithSinks
from .contrib import CONTRIB
from .experts import Experts, NarrowExperts
from .linear import Linear
from .nbits import NarrowLinear
from .norm import SkipNorm
from .packing import pack_linears
from .shapes import CollapseReshape, SameShape, WidthOfTheInput

__all__ = ["apply"]

RULES = RewriteRuleSet(
    [
        NarrowLinear.rule(),
        Linear.rule(),
        Attention.rule(),
        AttentionWithSinks.rule(),
        NarrowExperts.rule(),
        Experts.rule(),
        SkipNorm.rule(),
    ]
)
CLEANUP = RewriteRuleSet([CollapseReshape.rule()])
SAME_SHAPE = RewriteRuleSet([SameShape.rule()])


def apply(model: ir.Model) -> None:
    """Rewrite in place."""
    RULES.apply_to_model(model)
    CLEANUP.apply_to_model(model)
    common.RemoveUnusedNodesPass()(model)  # what weights were read through before
    RewriteRuleSet([WidthOfTheInput.rule(list(model.graph.inputs))]).apply_to_model(model)
    pack_linears(model)
    SAME_SHAPE.apply_to_model(model)
    model.opset_imports[CONTRIB] = 1
