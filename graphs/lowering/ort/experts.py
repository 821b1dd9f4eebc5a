"""Routed experts for ONNX Runtime: ``MoE`` and ``QMoE``, which compute only the selected experts."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRuleClassBase

from ....plugins.op_spec import DOMAIN
from ....plugins.ops.sparse_experts.spec import CUBIC
from ...names import CONTRIB
from ...quantization.rewrite_rules import inner_codes
from .linears import ACCURACY, blocks_of

_NOT_CHOSEN = -1e4  # a router logit below that of any selected expert
_UNLIMITED = 1e30


def _pattern(op: Any, x: Any, experts: Any, scores: Any, gate_up: Any, down: Any) -> Any:
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


def _unsupported(experts: ir.Value, gate_up: ir.Value, y: ir.Value) -> MatchResult:
    """Fail with the reason if the kernels cannot compute the node."""
    result, node = MatchResult(), y.producer()
    if node is not None and inner_codes(node):
        return result.fail("the input of the second matmul is quantized, which the kernels do not support", y)
    if node is not None and node.attributes.get_float(CUBIC.name, 0.0):
        return result.fail("the kernels have no gate with GELU", y)
    if experts.shape is None or not isinstance(experts.shape[1], int):
        return result.fail("the number of experts per token is not static", experts)
    if gate_up.shape is None or not isinstance(gate_up.shape[0], int):
        return result.fail("the number of experts is not static", gate_up)
    return result


def _routing(op: Any, x: ir.Value, experts: ir.Value, scores: ir.Value, count: int) -> ir.Value:
    """Return router logits from which the kernel's softmax over its top k gives the same experts, with score / sum.

    They are the logarithms of the scores, with a floor for all other experts.
    """
    shape = op.Concat(op.Shape(x, start=0, end=1), op.Constant(value_ints=[count]), axis=0)
    floor = op.ConstantOfShape(shape, value=ir.tensor(np.array([_NOT_CHOSEN], np.float32)))
    smallest = op.Constant(value_float=float(np.finfo(np.float32).tiny))
    logits: ir.Value = op.ScatterElements(floor, experts, op.Log(op.Max(scores, smallest)), axis=1)
    return logits


def _scaled_by_scores(op: Any, mixed: ir.Value, scores: ir.Value) -> Any:
    """Multiply by the sum of the scores, which the kernel divides by."""
    return op.Mul(mixed, op.ReduceSum(scores, op.Constant(value_ints=[1]), keepdims=1))


def _biases(node: ir.Node) -> list[ir.Value | None]:
    return [node.inputs[5], node.inputs[6]] if len(node.inputs) > 5 else [None, None]


def _terms(node: ir.Node, experts: ir.Value) -> dict[str, Any]:
    """Return the attributes common to both kernels."""
    return {
        "k": int(experts.shape[1]) if experts.shape is not None else 0,
        "normalize_routing_weights": 1,
        "activation_type": "swiglu",
        "swiglu_fusion": 1,
        "activation_alpha": node.attributes.get_float("alpha", 1.0),
        "activation_beta": node.attributes.get_float("beta", 0.0),
        "swiglu_limit": node.attributes.get_float("limit", 0.0) or _UNLIMITED,
    }


class MoEFusion(RewriteRuleClassBase):
    """``SparseExperts`` -> ``MoE``, whose weights have the same layout."""

    def pattern(self, op: Any, x: Any, experts: Any, scores: Any, gate_up: Any, down: Any) -> Any:
        return _pattern(op, x, experts, scores, gate_up, down)

    def check(self, _: Any, experts: ir.Value, gate_up: ir.Value, y: ir.Value, **__: Any) -> MatchResult:
        return _unsupported(experts, gate_up, y)

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
        node: Any = y.producer()
        (first, second), count = _biases(node), int(gate_up.shape[0])
        routing = _routing(op, x, experts, scores, count)
        mixed = op.MoE(x, routing, gate_up, first, down, second, **_terms(node, experts), _domain=CONTRIB)
        return _scaled_by_scores(op, mixed, scores)


class QMoEFusion(RewriteRuleClassBase):
    """``SparseExperts`` over dequantized codes -> ``QMoE``, which computes with the codes directly.

    Both stacks must have the same bits and blocks, because the kernel has only one attribute for each. If the rule does
    not match, ``MoE`` reads the output of ``DequantizeLinear``, and ONNX Runtime stores that in FP32.
    """

    def __init__(self) -> None:
        super().__init__(remove_nodes=False)

    def pattern(
        self,
        op: Any,
        x: Any,
        experts: Any,
        scores: Any,
        of_gate: Any,
        gate_scales: Any,
        gate_middle: Any,
        of_down: Any,
        down_scales: Any,
        down_middle: Any,
    ) -> Any:
        gate_up = op.DequantizeLinear(
            of_gate, gate_scales, gate_middle, _allow_other_attributes=True, _outputs=["gate_up"]
        )
        down = op.DequantizeLinear(of_down, down_scales, down_middle, _allow_other_attributes=True, _outputs=["down"])
        return _pattern(op, x, experts, scores, gate_up, down)

    def check(
        self, _: Any, experts: ir.Value, gate_up: ir.Value, down: ir.Value, y: ir.Value, **__: Any
    ) -> MatchResult:
        result, both = MatchResult(), [blocks_of(gate_up), blocks_of(down)]
        for blocks, weight in zip(both, (gate_up, down), strict=True):
            if blocks.fault:
                return result.fail(blocks.fault, blocks.codes)
            if len(weight.uses()) > 1:
                return result.fail("another node reads the weight as well", weight)
        if len({(blocks.bits, blocks.size) for blocks in both}) > 1:
            return result.fail("the two matmuls differ in bits or blocks", down)
        return _unsupported(experts, gate_up, y)

    def rewrite(
        self,
        op: Any,
        x: ir.Value,
        experts: ir.Value,
        scores: ir.Value,
        gate_up: ir.Value,
        down: ir.Value,
        y: ir.Value,
        **_: Any,
    ) -> Any:
        node: Any = y.producer()
        (first, second), count = _biases(node), int(gate_up.shape[0])
        both = [blocks_of(gate_up), blocks_of(down)]
        for blocks in both:
            blocks.as_bytes(split=False)
        routing = _routing(op, x, experts, scores, count)
        mixed = op.QMoE(
            x,
            routing,
            both[0].codes,
            both[0].scales,
            first,
            both[1].codes,
            both[1].scales,
            second,
            expert_weight_bits=both[0].bits,
            block_size=both[0].size,
            accuracy_level=ACCURACY,
            **_terms(node, experts),
            _domain=CONTRIB,
        )
        return _scaled_by_scores(op, mixed, scores)
