"""Routers: the softmax of the selected logits instead of the shares of selected probabilities in their sum.

Dense experts, weighed with this softmax where they are summed.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_ir.passes import common

from peagle.graphs.lowering.tensorrt import routers

_ROUTER = """<ir_version: 11, opset_import: ["" : 24]>
router (float[N, 16] logits) => (float[N, 4] scores, int64[N, 4] experts)
<int64[1] k = {{4}}, int64[1] axes = {{{axis}}}>
{{
  probabilities = Softmax<axis = -1>(logits)
  selected, experts = TopK<axis = -1, largest = {largest}, sorted = 1>(probabilities, k)
  total = ReduceSum<keepdims = 1>(selected, axes)
  scores = {scores}
}}"""


def _model(axis: int = -1, largest: int = 1, scores: str = "Div(selected, total)") -> onnx.ModelProto:
    return onnx.parser.parse_model(_ROUTER.format(axis=axis, largest=largest, scores=scores))


def _rewritten(proto: onnx.ModelProto) -> onnx.ModelProto:
    model = ir.from_proto(proto)
    routers.apply(model)
    return ir.to_proto(model)


def _run(model: onnx.ModelProto, logits: np.ndarray) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    outputs: list[np.ndarray] = session.run(["scores", "experts"], {"logits": logits})
    return outputs


@given(seed=st.integers(0, 999), scale=st.sampled_from([0.1, 1.0, 30.0]))
@settings(deadline=None, max_examples=12)
def test_experts_are_the_same_and_so_are_their_scores(seed: int, scale: float) -> None:
    before, after = _model(), _rewritten(_model())
    assert Counter(node.op_type for node in after.graph.node) == {"TopK": 1, "Softmax": 1}
    logits = (np.random.default_rng(seed).normal(size=(5, 16)) * scale).astype(np.float32)
    (scores, experts), (ours, selected) = _run(before, logits), _run(after, logits)
    shown = scores > 1e-6  # probabilities may be zeros in float32, and those have no order
    np.testing.assert_array_equal(experts[shown], selected[shown])
    np.testing.assert_allclose(scores, ours, atol=1e-6)


@pytest.mark.parametrize(
    "model",
    [_model(axis=0), _model(largest=0), _model(scores="Identity(selected)"), _model(scores="Div(total, selected)")],
    ids=["sum over tokens", "smallest", "not normalized", "inverse"],
)
def test_other_routers_are_unchanged(model: onnx.ModelProto) -> None:
    assert [node.op_type for node in _rewritten(model).graph.node] == [node.op_type for node in model.graph.node]


_EXPERTS = """<ir_version: 11, opset_import: ["" : 24]>
experts (float[N, 16] logits, float[16, N, 3] each) => (float[N, 3] y)
<int64[1] k = {{4}}, int64[1] first = {{0}}, int64[1] last = {{-1}}>
{{
  selected, ids = TopK<axis = -1, largest = 1, sorted = 1>(logits, k)
  wide = {scores}
  scores = Cast<to = 1>(wide)
  shape = Shape(logits)
  none = ConstantOfShape(shape)
  share = ScatterElements<axis = 1>(none, ids, scores)
  turned = Transpose<perm = [1, 0]>(share)
  by_expert = Unsqueeze(turned, last)
  weighted = Mul(each, by_expert)
  y = ReduceSum<keepdims = 0>(weighted, first)
}}"""


def _weighed(scores: str) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Dense experts before and after."""
    before = onnx.parser.parse_model(_EXPERTS.format(scores=scores))
    model = ir.from_proto(onnx.shape_inference.infer_shapes(before))
    routers.apply_shares_in_sum(model)
    common.RemoveUnusedNodesPass()(model)
    return before, ir.to_proto(model)


@given(seed=st.integers(0, 999), scale=st.sampled_from([0.5, 2.0, 50.0]))
@settings(deadline=None, max_examples=12)
def test_dense_experts_are_weighed_in_their_sum_also_with_equal_logits(seed: int, scale: float) -> None:
    models = _weighed("Softmax<axis = -1>(selected)")
    kinds = Counter(node.op_type for node in models[1].graph.node)
    assert not kinds.keys() & {"ScatterElements", "Softmax"}
    rng = np.random.default_rng(seed)
    logits = np.round(rng.normal(size=(5, 16)) * 2) * scale  # many of them equal
    inputs = {"logits": logits.astype(np.float32), "each": rng.normal(size=(16, 5, 3)).astype(np.float32)}
    sessions = [
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]) for model in models
    ]
    before, after = (session.run(None, inputs)[0] for session in sessions)
    np.testing.assert_allclose(after, before, atol=1e-5)


@pytest.mark.parametrize(
    "scores",
    ["Sigmoid(selected)", "Softmax<axis = 0>(selected)", "Mul(selected, selected)"],
    ids=["of one logit", "over tokens", "square"],
)
def test_experts_of_other_routers_are_unchanged(scores: str) -> None:
    before, after = _weighed(scores)
    assert Counter(node.op_type for node in after.graph.node) == Counter(node.op_type for node in before.graph.node)
