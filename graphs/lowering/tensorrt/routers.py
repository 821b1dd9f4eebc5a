"""Routers that normalize the probabilities of the selected experts, as the softmax of the selected logits.

The largest logits are the largest probabilities, and the softmax of some logits is the share of each probability in
their sum. This way, TensorRT has no kernels for the probabilities of all experts.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRuleClassBase, RewriteRuleSet


class SoftmaxOfSelected(RewriteRuleClassBase):
    """``TopK(Softmax(logits))``, divided by its sum -> ``Softmax(TopK(logits))``."""

    def pattern(self, op: Any, logits: Any, k: Any, axes: Any) -> Any:
        probabilities = op.Softmax(logits, axis=-1)
        selected, experts = op.TopK(probabilities, k, axis=-1, largest=1, sorted=1, _outputs=2)
        total = op.ReduceSum(selected, axes, keepdims=1, _allow_other_attributes=True)
        return op.Div(selected, total), experts

    def check(self, _: Any, axes: ir.Value, **__: Any) -> MatchResult:
        result, constant = MatchResult(), ir.convenience.get_const_tensor(axes)
        if constant is None or constant.numpy().tolist() != [-1]:
            return result.fail("the sum is not over the selected experts", axes)
        return result

    def rewrite(self, op: Any, logits: Any, k: Any, **_: Any) -> Any:
        selected, experts = op.TopK(logits, k, axis=-1, largest=1, sorted=1, _outputs=2)
        return op.Softmax(selected, axis=-1), experts


RULES = RewriteRuleSet([SoftmaxOfSelected.rule()])


def apply(model: ir.Model) -> None:
    """Rewrite every such router in place."""
    RULES.apply_to_model(model)
