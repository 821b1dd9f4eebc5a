"""Routers: the softmax of the selected logits instead of the shares of selected probabilities in their sum."""

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
@settings(deadline=None, max_examples=30)
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
def test_other_routers_stay_as_they_are(model: onnx.ModelProto) -> None:
    assert [node.op_type for node in _rewritten(model).graph.node] == [node.op_type for node in model.graph.node]
