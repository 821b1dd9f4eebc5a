"""Routed experts with 4-bit and 8-bit codes on ONNX Runtime, and those that its kernel does not support."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.graphs.lowering import LOWERINGS
from peagle.graphs.lowering.ort.experts import QMoEFusion
from peagle.graphs.quantization import products_of, quantize
from peagle.graphs.quantization.quantized_weight import Codes
from peagle.plugins.ops.sparse_experts.spec import GELU
from tests.graphs.quantized_graphs import BITS, KINDS, Small, experts, in_blocks, noise, ops, outputs_of


@settings(max_examples=12, deadline=None)
@given(
    kind=KINDS,
    tokens=st.integers(1, 4),
    terms=st.sampled_from([(1.0, 0.0, 0.0), (1.702, 1.0, 7.0), (1.702, 1.0, 0.25)]),
    biased=st.booleans(),
    seed=st.integers(0, 99),
)
def test_quantized_experts_match_dequantized_weights(
    kind: Codes,
    tokens: int,
    terms: tuple[float, float, float],
    biased: bool,
    seed: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder, draw = tmp_path_factory.mktemp("experts"), np.random.default_rng(seed)
    attributes = dict(zip(("alpha", "beta", "limit"), terms, strict=True))
    shapes = {"gate_up": (4, 64, 64), "down": (4, 64, 32)}
    weights = {name: noise(seed, *shape) / np.float32(8) for name, shape in shapes.items()}
    how = {name: in_blocks(kind, 32, *shape) for name, shape in shapes.items()}
    inputs = {
        "x": noise(seed + 1, tokens, 64),
        "experts": np.array([draw.permutation(4)[:2] for _ in range(tokens)]),
        "scores": draw.random((tokens, 2)).astype(np.float32),
    }
    inputs |= {"gate_up_bias": noise(3, 4, 64), "down_bias": noise(4, 4, 64)} if biased else {}
    results = {}
    for lowering in ("std", "ort"):
        small = Small(experts(attributes, biased), weights, how)
        model = small.lowered(lowering, folder / f"{lowering}.onnx")
        assert ops(model)["QMoE"] == (lowering == "ort")
        assert {(each.weight, each.stored) for each in products_of(model)} == {
            (name, f"int{BITS[kind]}") for name in how
        }
        (results[lowering],) = outputs_of(folder / f"{lowering}.onnx", **inputs)
    error = np.linalg.norm(results["ort"] - results["std"]) / np.linalg.norm(results["std"])
    assert error < 0.03  # both inputs are rounded to eight bits


@pytest.mark.parametrize(
    ("attributes", "block", "reason"),
    [
        ({}, 64, "differ in bits or blocks"),
        ({}, 8, "a power of two of at least 16"),
        ({"inner_codes": "int8", "inner_scale": 0.1}, 32, "the input of the second matmul is quantized"),
        (GELU, 32, "no gate with GELU"),
    ],
)
def test_unsupported_experts_are_kept_with_a_reason(attributes: dict[str, Any], block: int, reason: str) -> None:
    model = experts(attributes, biased=False)
    quantize(model, {"gate_up": in_blocks("uint4", block, 4, 64, 64), "down": in_blocks("uint4", 32, 4, 64, 32)})
    node = next(node for node in model.graph if node.op_type == "SparseExperts")
    weights = dict(zip(("gate_up", "down"), node.inputs[3:5], strict=True))
    result = QMoEFusion().check(None, experts=node.inputs[1], y=node.outputs[0], **weights)  # type: ignore[arg-type]
    assert reason in result.reason
    LOWERINGS["ort"].apply(model)
    assert ops(model)["QMoE"] == 0
    assert ops(model)["MoE"] == (not attributes)
