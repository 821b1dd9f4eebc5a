"""Routed experts keep their MXFP4 blocks: two ops replace one, or the reason is reported."""

from __future__ import annotations

import math

import onnx_ir as ir
import pytest

from peagle.graphs.quantization import QuantizedWeight, keep_all, quantize
from peagle.graphs.quantization.mxfp4_experts import UNSUITED
from peagle.plugins.ops.sparse_experts.spec import GELU
from tests.graphs.quantized_graphs import experts

TERMS = {"alpha": 1.702, "beta": 1.0, "limit": 7.0}
GATE_UP = QuantizedWeight("int8", (4, 64, 2), 32, powers=True, blocks="mxfp4")
DOWN = QuantizedWeight("int8", (4, 64, 1), 32, powers=True, blocks="mxfp4")


def shapes(model: ir.Model) -> dict[str, tuple[int, ...]]:
    return {str(name): tuple(map(int, value.shape)) for name, value in model.graph.initializers.items()}


def test_both_stacks_become_codes_and_exponents_of_two_ops() -> None:
    model = experts(TERMS, biased=True)
    done = quantize(model, {"gate_up": GATE_UP, "down": DOWN})
    first, second = model.graph
    assert (first.op_type, second.op_type) == ("Mxfp4GateUp", "Mxfp4Down")
    assert [value.name for value in first.inputs][:5] == ["x", "experts", "gate_up", "gate_up_scale", "gate_up_bias"]
    assert [value.name for value in second.inputs][1:] == ["experts", "scores", "down", "down_scale", "down_bias"]
    assert shapes(model) == {
        "gate_up": (4, 32, 2, 2, 16), "gate_up_scale": (4, 32, 2, 2), "down": (4, 64, 1, 16), "down_scale": (4, 64, 1),
        "gate_up.alpha": (), "gate_up.beta": (), "gate_up.limit": (),
    }  # fmt: skip
    assert not done.refused
    assert set(done.done) == {"gate_up", "down"}
    assert {name: (stream.weight, stream.scales) for name, stream in done.streams.items()} == {
        "gate_up": ("gate_up", False), "gate_up_scale": ("gate_up", True),
        "down": ("down", False), "down_scale": ("down", True),
    }  # fmt: skip
    assert second.outputs[0] is model.graph.outputs[0]


def test_no_clamp_is_an_infinite_limit() -> None:
    model = experts({}, biased=True)
    keep_all(model)
    numbers = [value.const_value.numpy().item() for value in next(iter(model.graph)).inputs[5:]]
    assert numbers == [1.0, 0.0, math.inf]


@pytest.mark.parametrize(
    ("terms", "biased", "weights"),
    [
        (TERMS, False, {"gate_up": GATE_UP, "down": DOWN}),
        (TERMS, True, {"gate_up": GATE_UP}),
        (GELU, True, {"gate_up": GATE_UP, "down": DOWN}),
    ],
)
def test_other_experts_stay_with_a_reason(
    terms: dict[str, float], biased: bool, weights: dict[str, QuantizedWeight]
) -> None:
    model = experts(terms, biased=biased)
    done = quantize(model, weights)
    assert [node.op_type for node in model.graph] == ["SparseExperts"]
    assert done.refused == dict.fromkeys(weights, UNSUITED)
    assert not done.streams
