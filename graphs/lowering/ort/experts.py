"""Routed experts: ``com.microsoft.MoE``, which computes only the experts that a token has."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRuleClassBase

from ....plugins.spec import DOMAIN
from .contrib import CONTRIB

_NOT_CHOSEN = -1e4  # a router logit that no chosen expert falls below
_UNLIMITED = 1e30


class Experts(RewriteRuleClassBase):
    """``SparseExperts`` -> ``MoE``, whose weights have the same layout.

    The kernel routes by itself, softmax over its own top k. Given the logarithms of the scores, and a floor for every
    other expert, it chooses the same experts and weighs them score / sum; the sum is put back afterwards.
    """

    def pattern(self, op: Any, x: Any, experts: Any, scores: Any, gate_up: Any, down: Any) -> Any:
        return op.SparseExperts(
            x,
            experts,
            scores,
            gate_up,
            down,
            _domain=DOMAIN,
            _allow_other_inputs=True,
            _allow_other_attributes=True,
            _outputs=["y"],
        )

    def check(self, _: Any, experts: ir.Value, gate_up: ir.Value, **__: Any) -> MatchResult:
        result = MatchResult()
        if experts.shape is None or not isinstance(experts.shape[1], int):
            return result.fail("the number of experts of a token is not static", experts)
        if gate_up.shape is None or not isinstance(gate_up.shape[0], int):
            return result.fail("the number of experts is not static", gate_up)
        return result

    def rewrite(
        self,
        op: Any,
        x: ir.Value,
        experts: ir.Value,
        scores: ir.Value,
        gate_up: ir.Value,
        down: ir.Value,
        y: ir.Value,
    ) -> Any:
        node = y.producer()
        terms = {name: node.attributes[name].as_float() for name in ("alpha", "beta", "limit")}
        biases = [node.inputs[5], node.inputs[6]] if len(node.inputs) > 5 else [None, None]
        active, count = int(experts.shape[1]), int(gate_up.shape[0])
        shape = op.Concat(op.Shape(x, start=0, end=1), op.Constant(value_ints=[count]), axis=0)
        floor = op.ConstantOfShape(shape, value=ir.tensor(np.array([_NOT_CHOSEN], np.float32)))
        smallest = op.Constant(value_float=float(np.finfo(np.float32).tiny))
        routing = op.ScatterElements(floor, experts, op.Log(op.Max(scores, smallest)), axis=1)
        mixed = op.MoE(
            x,
            routing,
            gate_up,
            biases[0],
            down,
            biases[1],
            k=active,
            normalize_routing_weights=1,
            activation_type="swiglu",
            swiglu_fusion=1,
            activation_alpha=terms["alpha"],
            activation_beta=terms["beta"],
            swiglu_limit=terms["limit"] or _UNLIMITED,
            _domain=CONTRIB,
        )
        return op.Mul(mixed, op.ReduceSum(scores, op.Constant(value_ints=[1]), keepdims=1))
