"""Packed unquantized matrices: products and lookups become custom ops, and rows are packed while they stream."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.graphs import graph_files
from peagle.graphs.lowering import LOWERINGS
from peagle.graphs.lowering.shared_passes import finish
from peagle.graphs.quantization import QuantizedWeight, pack_wide, packed_tiles, products_of, quantize
from peagle.graphs.stream_weights import attach
from peagle.plugins.ops import OPS
from peagle.plugins.ops.sparse_experts.spec import CLAMPED, GELU
from peagle.plugins.ops.wide_linear.packed_matrix import pack_matrix
from tests.graphs.quantized_graphs import embedded, experts, linears, noise, outputs_of, tied


def counts(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph)


def test_linear_becomes_a_wide_linear() -> None:
    model = linears("a", rows=40)
    assert pack_wide(model) == {"a": (40, 64)}
    assert counts(model) == {"WideLinear": 1, "Identity": 1}
    assert list(model.graph.initializers["a"].shape) == [3, 64, 16]
    (product,) = products_of(model)
    assert (product.op, product.stored, product.computed) == ("WideLinear", "float32", "float32")
    assert product.numbers == 40 * 64


def test_tied_embedding_is_stored_once() -> None:
    model = tied()
    assert [*pack_wide(model)] == ["w"]
    assert counts(model) == {"WideLinear": 1, "WideEmbedding": 1, "Identity": 1}
    assert {*model.graph.initializers} == {"w"}
    assert [value.name for value in model.graph.outputs] == ["y.w", "rows"]


def test_matrix_with_other_readers_is_kept() -> None:
    model = embedded("a", wide=True)
    assert pack_wide(model) == {}
    assert "MatMul" in counts(model)


def test_lookup_only_table_is_packed_on_request() -> None:
    model = embedded("a")
    quantize(model, {"a": QuantizedWeight("int8", (48,), packed="int8")})  # the head alone
    assert pack_wide(model) == {}
    assert pack_wide(model, ["a"]) == {"a": (48, 64)}
    assert counts(model) == {"QuantizedLinear": 1, "WideEmbedding": 1, "Identity": 1}


@pytest.mark.parametrize("rows", [48, 40])
def test_lowered_graph_matches_the_reference(tmp_path: Path, rows: int) -> None:
    """Rows that are whole tiles are stacked into one product; others are not."""
    model, rng = linears("a", "b", rows=rows), np.random.default_rng(0)
    packed = pack_wide(model)
    weights = {name: rng.normal(size=(rows, 64)).astype(np.float32) for name in "ab"}

    def read(name: str) -> Any:
        return packed_tiles([weights[name][:5], weights[name][5:]], packed[name])

    LOWERINGS["cpu"].apply(model)
    attach(finish(model), read, tmp_path / "model.onnx")
    products = products_of(graph_files.load(tmp_path / "model.onnx"))
    assert [each.numbers for each in products] == ([2 * rows * 64] if rows == 48 else [rows * 64] * 2)
    x = rng.normal(size=(3, 64)).astype(np.float32)
    for y, name in zip(outputs_of(tmp_path / "model.onnx", x=x), "ab", strict=True):
        (expected,) = OPS["WideLinear"].reference(x, pack_matrix(weights[name]), rows=rows)
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("terms", "biased"), [({}, False), (CLAMPED | {"limit": 0.5}, True), (GELU, False)])
def test_experts_become_wide_experts(tmp_path: Path, terms: dict[str, float], biased: bool) -> None:
    model, rng = experts(terms, biased), np.random.default_rng(0)
    packed = pack_wide(model)
    assert packed == {"gate_up": (4, 64, 64), "down": (4, 64, 32)}
    assert counts(model) == {"WideExperts": 1}
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in packed.items()}

    def read(name: str) -> Any:
        return packed_tiles([weights[name][:1], weights[name][1:]], packed[name])

    LOWERINGS["cpu"].apply(model)
    attach(finish(model), read, tmp_path / "model.onnx")
    products = products_of(graph_files.load(tmp_path / "model.onnx"))
    assert [(each.weight, each.op, each.stored, each.computed, each.numbers) for each in products] == [
        ("gate_up", "WideExperts", "float32", "float32", 4 * 64 * 64),
        ("down", "WideExperts", "float32", "float32", 4 * 64 * 32),
    ]
    inputs = {"x": noise(1, 3, 64), "experts": np.array([[0, 3], [2, 0], [1, 2]]), "scores": abs(noise(2, 3, 2))}
    inputs |= {"gate_up_bias": noise(3, 4, 64), "down_bias": noise(4, 4, 64)} if biased else {}
    (y,) = outputs_of(tmp_path / "model.onnx", **inputs)
    given = [*[*inputs.values()][:3], *weights.values(), *[*inputs.values()][3:]]
    spec = OPS["SparseExperts"]
    (expected,) = spec.reference(*given, **spec.check_attributes(terms))
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5 * abs(expected).max())


def test_experts_whose_inner_values_are_rounded_are_kept() -> None:
    model = experts({"inner_codes": "int8", "inner_scale": 0.1}, biased=False)
    assert pack_wide(model) == {}
    assert counts(model) == {"SparseExperts": 1}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 3), st.integers(1, 5))
def test_runs_of_rows_are_packed_as_the_whole_stack(lengths: list[int], count: int, columns: int) -> None:
    """Runs end anywhere in a matrix; each matrix begins with a tile of its own."""
    rows = sum(lengths)
    stack = np.random.default_rng(0).normal(size=(count, rows, columns)).astype(np.float32)
    cuts = np.cumsum(lengths)[:-1] * count  # of all rows, so that most are inside of a matrix
    runs = np.split(stack.reshape(-1, columns), cuts)
    tiles = np.concatenate(list(packed_tiles(runs, stack.shape)))
    packed = np.stack([pack_matrix(matrix) for matrix in stack])
    np.testing.assert_array_equal(tiles, packed.reshape(tiles.shape))
    of_one = np.concatenate(list(packed_tiles([stack[0]], stack[0].shape)))
    np.testing.assert_array_equal(of_one, pack_matrix(stack[0]))
