"""Linears over ``[out, in]`` weights as they are stored: ``FusedMatMul`` pre-packs them at load like any constant."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRuleClassBase

from .contrib import CONTRIB


class Linear(RewriteRuleClassBase):
    """``MatMul(x, Transpose(weight))`` -> ``FusedMatMul(x, weight, transB=1)``: no transposed copy of the weight."""

    def __init__(self) -> None:
        super().__init__(remove_nodes=False)  # two linears may share one weight

    def pattern(self, op: Any, x: Any, weight: Any) -> Any:
        return op.MatMul(x, op.Transpose(weight, perm=[1, 0]))

    def check(self, _: Any, weight: ir.Value, **__: Any) -> MatchResult:
        result = MatchResult()
        return result if weight.is_initializer() else result.fail("the right side is computed, not a weight", weight)

    def rewrite(self, op: Any, x: ir.Value, weight: ir.Value) -> Any:
        return op.FusedMatMul(x, weight, transB=1, _domain=CONTRIB)
