"""Packed matrices: products and lookups become custom ops, and rows are packed while they stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.graphs import graph_files
from peagle.graphs.lowering import LOWERINGS
from peagle.graphs.lowering.shared_passes import finish
from peagle.graphs.quantization import QuantizedWeight, packed_runs, products_of, quantize
from peagle.graphs.stream_weights import attach
from peagle.plugins.ops import OPS
from peagle.plugins.ops.quantized_linear.packed_weights import FORMATS, pack_codes, pack_scales
from tests.graphs.quantized_graphs import embedded, linears

INT8 = QuantizedWeight("int8", (48,), packed="int8")
Q4_0 = QuantizedWeight("uint4", (48, 2), 32, packed="q4_0")


def counts(model: ir.Model) -> dict[str, int]:
    kinds = [node.op_type for node in model.graph]
    return {kind: kinds.count(kind) for kind in kinds}


@pytest.mark.parametrize(("how", "kind", "bits"), [(INT8, "int8", 8), (Q4_0, "q4_0", 4)])
def test_linear_becomes_a_quantized_linear(how: QuantizedWeight, kind: str, bits: int) -> None:
    model = linears("a", "b")
    made = quantize(model, {"a": how})
    assert made.done == ("a",)
    assert counts(model) == {"QuantizedLinear": 1, "Transpose": 1, "MatMul": 1, "Identity": 2}
    (product,) = [each for each in products_of(model) if each.weight == "a"]
    assert (product.op, product.stored, product.computed) == ("QuantizedLinear", f"int{bits}", "int8")
    assert product.numbers == 48 * 64
    (node,) = [node for node in model.graph if node.op_type == "QuantizedLinear"]
    assert (node.attributes["format"].as_string(), node.attributes["rows"].as_int()) == (kind, 48)
    assert {name: stream.scales for name, stream in made.streams.items()} == {"a": False, "a_scale": True}


def test_lookups_share_the_head_codes() -> None:
    model = embedded("a", wide=False)
    quantize(model, {"a": QuantizedWeight("int8", (48,), gathered=True, packed="int8")})
    assert counts(model) == {"QuantizedLinear": 1, "Identity": 1, "QuantizedEmbedding": 1}
    assert {*model.graph.initializers} == {"a", "a_scale"}
    assert [value.name for value in model.graph.outputs] == ["y.a", "of.Gather"]


def test_other_readers_get_the_dequantized_matrix() -> None:
    model = embedded("a", wide=True)
    made = quantize(model, {"a": INT8})
    assert counts(model) == {"QuantizedLinear": 1, "Identity": 1, "Gather": 1, "Add": 1}
    assert {*model.graph.initializers} == {"a", "a.codes", "a_scale"}
    assert {*made.streams} == {"a.codes", "a_scale"}


@pytest.mark.parametrize("rows", [48, 40])
def test_lowered_graph_matches_the_reference(tmp_path: Path, rows: int) -> None:
    """Rows that are whole tiles are stacked into one product; others are not."""
    model, rng = linears("a", "b", rows=rows), np.random.default_rng(0)
    how = QuantizedWeight("int8", (rows,), packed="int8")
    made = quantize(model, {"a": how, "b": how})
    codes = {name: rng.integers(-127, 128, (rows, 64), dtype=np.int8) for name in "ab"}
    scales = {name: rng.random((rows, 1), np.float32) for name in "ab"}

    def read(name: str) -> Any:
        stream = made.streams[name]
        values = (scales if stream.scales else codes)[stream.weight]
        return packed_runs("int8", [values[:5], values[5:]], values.shape[1:], scales=stream.scales)

    LOWERINGS["cpu"].apply(model)
    attach(finish(model), read, tmp_path / "model.onnx")
    products = products_of(graph_files.load(tmp_path / "model.onnx"))
    assert [each.numbers for each in products] == ([2 * rows * 64] if rows == 48 else [rows * 64] * 2)
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    x = rng.normal(size=(3, 64)).astype(np.float32)
    for name, y in zip("ab", session.run(None, {"x": x}), strict=True):
        packed = pack_codes("int8", codes[name]), pack_scales("int8", scales[name])
        (expected,) = OPS["QuantizedLinear"].reference(x, *packed, format="int8", rows=rows)
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-3)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(FORMATS[:1] + FORMATS[2:3]), st.lists(st.integers(0, 40), min_size=1, max_size=6))
def test_runs_of_any_length_are_packed_as_the_whole(name: str, lengths: list[int]) -> None:
    rng = np.random.default_rng(sum(lengths))
    runs = [rng.integers(0, 16, (length, 64), dtype=np.int8) for length in lengths]
    whole = np.concatenate(runs)
    if not len(whole):
        return
    packed = list(packed_runs(name, runs, (64,), scales=False))
    np.testing.assert_array_equal(np.concatenate(packed), pack_codes(name, whole))
    of_rows = list(packed_runs(name, [run[:, :2] for run in runs], (2,), scales=True))
    np.testing.assert_array_equal(np.concatenate(of_rows), pack_scales(name, whole[:, :2]))
