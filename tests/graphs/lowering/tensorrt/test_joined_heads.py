"""Joined query and key projections: one norm and one rotary embedding give the results of two."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.graphs.lowering.tensorrt import joined_heads, joined_linears
from tests.graphs.lowering.tensorrt.small_graphs import linear, node, results, stored, value, weight

COLUMNS, SIZE, POSITIONS = 12, 8, 16


def _model(heads: tuple[int, ...], *, norms: int = 2, epsilons: tuple[float, ...] = (1e-6,) * 3) -> ir.Model:
    """Linears of ``x`` with so many heads each; the first ``norms`` have normed and rotated ones."""
    x, at = value("x", ["B", "S", COLUMNS]), value("at", ["B", "S"], ir.DataType.INT64)
    tables = [weight(name, POSITIONS, SIZE // 2) for name in ("cos", "sin")]
    weights, outputs = [*tables], []
    for place, count in enumerate(heads):
        weights.append(weight(f"w{place}", count * SIZE, COLUMNS))
        shape = ir.Value(name=f"shape{place}", const_value=ir.tensor([0, 0, -1, SIZE], name=f"shape{place}"))
        weights.append(shape)
        heads_last = node("Reshape", [linear(x, weights[-2]), shape], ["B", "S", count, SIZE])
        if place < norms:
            weights.append(weight(f"norm{place}", SIZE))
            heads_last = node(
                "RMSNormalization", [heads_last, weights[-1]], ["B", "S", count, SIZE], axis=-1, epsilon=epsilons[place]
            )
        heads_first = node("Transpose", [heads_last], ["B", count, "S", SIZE], perm=[0, 2, 1, 3])
        if place < norms:
            heads_first = node("RotaryEmbedding", [heads_first, *tables, at], ["B", count, "S", SIZE])
        heads_first.name = f"y{place}"
        outputs.append(heads_first)
    nodes = list(dict.fromkeys(each for output in outputs for each in _before(output)))
    graph = ir.Graph([x, at], outputs, nodes=nodes, initializers=weights, opset_imports={"": 24})
    return ir.Model(graph, ir_version=11)


def _before(output: ir.Value) -> list[ir.Node]:
    maker = output.producer()
    return [] if maker is None else [*(n for x in maker.inputs if x is not None for n in _before(x)), maker]


def _apply(model: ir.Model) -> Counter[str]:
    joined_linears.apply(model)
    joined_heads.apply(model)
    return Counter(each.op_type for each in model.graph)


@given(
    heads=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=10)
def test_one_norm_gives_the_results_of_two(
    heads: tuple[int, ...], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before, after, folder = _model(heads), _model(heads), tmp_path_factory.mktemp("heads")
    values, rng = stored(before), np.random.default_rng(seed)
    kinds = _apply(after)
    assert kinds["MatMul"] == kinds["RMSNormalization"] == kinds["RotaryEmbedding"] == 1
    inputs = {
        "x": rng.normal(size=(2, 3, COLUMNS)).astype(np.float32),
        "at": rng.integers(0, POSITIONS, (2, 3)),
    }
    apart, together = results(before, values, inputs, folder / "a"), results(after, values, inputs, folder / "b")
    for one, other in zip(apart, together, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "model",
    [_model((4, 2, 2), norms=1), _model((4, 2, 2), norms=0), _model((4, 2), epsilons=(1e-6, 1e-5))],
    ids=["one norm", "no norm", "two kinds of norms"],
)
def test_other_unquantized_linears_stay_apart(model: ir.Model) -> None:
    before = Counter(each.op_type for each in model.graph)
    assert _apply(model) == before


def test_linears_may_all_have_norms() -> None:
    kinds = _apply(_model((4, 2), norms=2))
    assert kinds["MatMul"] == kinds["RMSNormalization"] == 1
