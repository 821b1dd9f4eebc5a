"""Routers that normalize the probabilities of the selected experts, as the softmax of the selected logits.

The largest logits are the largest probabilities, and the softmax of some logits is the share of each probability in
their sum. This way, TensorRT has no kernels for the probabilities of all experts.

If all experts are computed, the share of an expert is computed where the experts are summed, from its logit and the
smallest selected logit, and the sum is divided by the sum of the shares. This way, TensorRT has no kernels for shares.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRuleClassBase, RewriteRuleSet

from ...node_tape import Nodes

_WIDE = ir.DataType.FLOAT
_END = 2**62


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


def apply_shares_in_sum(model: ir.Model) -> None:
    """Compute the shares of dense, inlined experts in their sum, in place, where the router is such a softmax."""
    for node in tuple(model.graph):
        if node.op_type == "ScatterElements":
            _rewrite_weighted_sum(model.graph, node)


def _rewrite_weighted_sum(graph: ir.Graph, scattering: ir.Node) -> None:
    """Rewrite the sum of the experts whose shares this node scatters; leave those of other routers."""
    scores, top = _maker(scattering.inputs[2]), _maker(scattering.inputs[1])
    scores = _maker(scores.inputs[0]) if scores is not None and scores.op_type == "Cast" else scores
    product = _end_of_chain(scattering.outputs[0], "Transpose", "Unsqueeze", "Mul")
    total = _end_of_chain(product.outputs[0], "ReduceSum") if product is not None else None
    if scores is None or top is None or product is None or total is None:
        return
    if scores.op_type != "Softmax" or top.op_type != "TopK" or scores.inputs[0] is not top.outputs[0]:
        return
    if scores.attributes.get_int("axis", -1) not in (-1, 1) or not top.attributes.get_int("largest", 1):
        return
    op, each, result = Nodes(), product.inputs[0], total.outputs[0]
    share = op.Unsqueeze(op.Transpose(_shares(op, top), perm=[1, 0]), op.constant([2]))
    # Expanded, because TensorRT-RTX computes two sums in one kernel if both are over as many numbers.
    parts = (op.Mul(op.Cast(each, to=_WIDE), share), op.Expand(share, op.Shape(each)))
    experts, total_share = (op.ReduceSum(part, op.constant([0]), keepdims=0) for part in parts)
    weighed = op.CastLike(op.Div(experts, total_share), each)
    weighed.shape, weighed.type = result.shape, result.type
    ir.convenience.replace_nodes_and_values(graph, total, [total], op.nodes, [result], [weighed])


def _shares(op: Nodes, top: ir.Node) -> ir.Value:
    """Return the share of every expert ``[N,E]``, not normalized: 0 of those that ``top`` does not select."""
    logits, zero, one = top.inputs[0], op.constant([0]), op.constant([1])
    selected, ids = top.outputs
    largest = op.Slice(selected, zero, one, one)
    smallest, last = (op.Slice(value, op.constant([-1]), op.constant([_END]), one) for value in (selected, ids))
    count = op.Squeeze(op.Shape(logits, start=-1), zero)
    is_behind = op.Greater(op.Range(op.constant(0), count, op.constant(1)), last)
    # Of equal logits, top-k selects those with the lowest ids.
    is_tied = op.And(op.Equal(logits, smallest), op.Not(is_behind))
    is_selected = op.Or(op.Greater(logits, smallest), is_tied)
    powers = op.Exp(op.Sub(op.Cast(logits, to=_WIDE), op.Cast(largest, to=_WIDE)))
    return op.Where(is_selected, powers, op.constant(0.0, _WIDE))


def _maker(value: ir.Value | None) -> ir.Node | None:
    return value.producer() if value is not None else None


def _end_of_chain(value: ir.Value, *kinds: str) -> ir.Node | None:
    """Return the last of some nodes of these kinds, each of which is the only reader of the one before."""
    node = None
    for kind in kinds:
        uses = list(value.uses())
        if len(uses) != 1 or uses[0].node.op_type != kind:
            return None
        node = uses[0].node
        value = node.outputs[0]
    return node
