"""Residual additions together with the norm that follows."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import RewriteRuleClassBase

from .contrib import CONTRIB


class SkipNorm(RewriteRuleClassBase):
    """``RMSNormalization(a + b)`` -> ``SkipSimplifiedLayerNormalization``, which also hands on the sum."""

    def pattern(self, op: Any, a: Any, b: Any, weight: Any) -> Any:
        total = op.Add(a, b, _outputs=["total"])
        return op.RMSNormalization(total, weight, axis=-1, _allow_other_attributes=True, _outputs=["normed"]), total

    def rewrite(self, op: Any, a: ir.Value, b: ir.Value, weight: ir.Value, normed: ir.Value, **_: Any) -> Any:
        epsilon = normed.producer().attributes["epsilon"].as_float()
        out, _mean, _variance, total = op.SkipSimplifiedLayerNormalization(
            a, b, weight, epsilon=epsilon, _domain=CONTRIB, _outputs=4
        )
        return out, total
