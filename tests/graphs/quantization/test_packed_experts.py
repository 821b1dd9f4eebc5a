"""Packed expert stacks: routed experts become a custom op, and matrices are packed while they stream."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from peagle.graphs import graph_files
from peagle.graphs.lowering import LOWERINGS
from peagle.graphs.lowering.shared_passes import finish
from peagle.graphs.quantization import QuantizedWeight, packed_runs, products_of, quantize
from peagle.graphs.stream_weights import attach
from peagle.plugins.ops import OPS
from peagle.plugins.ops.quantized_linear.packed_weights import pack_codes, pack_scales
from peagle.plugins.ops.sparse_experts.spec import GELU
from tests.graphs.quantized_graphs import experts, noise

SHAPES = {"gate_up": (4, 64, 64), "down": (4, 64, 32)}
TERMS = {"alpha": 1.702, "beta": 1.0, "limit": 7.0}


def kinds(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph)


def in_int8(*names: str) -> dict[str, QuantizedWeight]:
    return {name: QuantizedWeight("int8", SHAPES[name][:2], packed="int8") for name in names}


def test_experts_with_packed_stacks_become_one_node() -> None:
    model = experts(TERMS, True)
    made = quantize(model, in_int8("gate_up", "down"))
    assert kinds(model)["QuantizedExperts"] == 1
    assert kinds(model)["SparseExperts"] == 0
    assert made.done == ("gate_up", "down")
    assert {name: stream.scales for name, stream in made.streams.items()} == {
        "gate_up": False, "gate_up_scale": True, "down": False, "down_scale": True
    }  # fmt: skip
    products = [(each.weight, each.stored, each.computed, each.numbers) for each in products_of(model)]
    assert products == [("gate_up", "int8", "int8", 4 * 64 * 64), ("down", "int8", "int8", 4 * 64 * 32)]


@pytest.mark.parametrize("name", ["gate_up", "down"])
def test_experts_with_one_packed_stack_stay_unquantized_with_a_reason(name: str) -> None:
    model = experts(TERMS, False)
    made = quantize(model, in_int8(name))
    assert kinds(model)["SparseExperts"] == 1
    assert made.done == ()
    assert "requires that both stacks" in made.refused[name]


@pytest.mark.parametrize(("terms", "biased"), [(TERMS, False), (TERMS, True), (GELU, False)])
def test_lowered_graph_matches_the_reference(tmp_path: Path, terms: dict[str, float], biased: bool) -> None:
    model, rng = experts(terms, biased), np.random.default_rng(0)
    made = quantize(model, in_int8("gate_up", "down"))
    codes = {name: rng.integers(-127, 128, shape, dtype=np.int8) for name, shape in SHAPES.items()}
    scales = {name: 0.01 * rng.random((*shape[:2], 1), np.float32) for name, shape in SHAPES.items()}

    def read(name: str) -> Any:
        stream = made.streams[name]
        values = (scales if stream.scales else codes)[stream.weight]
        rows = values.reshape(-1, values.shape[-1])
        return packed_runs("int8", [rows[:70], rows[70:]], rows.shape[1:], scales=stream.scales)

    LOWERINGS["cpu"].apply(model)
    attach(finish(model), read, tmp_path / "model.onnx")
    assert kinds(graph_files.load(tmp_path / "model.onnx"))["QuantizedExperts"] == 1
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    tokens = {
        "x": rng.normal(size=(3, 64)).astype(np.float32),
        "experts": np.array([rng.permutation(4)[:2] for _ in range(3)]),
        "scores": rng.random((3, 2)).astype(np.float32),
    }
    biases = {"gate_up_bias": noise(3, 4, 64), "down_bias": noise(4, 4, 64)} if biased else {}
    (y,) = session.run(None, tokens | biases)
    stacks = [
        np.stack([pack(each) for each in values[name]])
        for name in SHAPES
        for pack, values in ((lambda x: pack_codes("int8", x), codes), (lambda x: pack_scales("int8", x), scales))
    ]
    attributes = {"gate_up_format": "int8", "down_format": "int8", "inner": 32, "hidden": 64, **terms}
    (expected,) = OPS["QuantizedExperts"].reference(*tokens.values(), *stacks, *biases.values(), **attributes)
    np.testing.assert_allclose(y, expected, atol=0.02 * np.abs(expected).max())
