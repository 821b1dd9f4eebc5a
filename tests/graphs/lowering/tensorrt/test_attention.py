"""Attention for TensorRT reads the requested part of the caches, with equal results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.graphs.lowering.tensorrt.cache_reads import cache_reads
from peagle.graphs.node_tape import Nodes
from tests.graphs.running import Graph, target_inputs
from tests.graphs.traced import CACHE
from tests.models import VOCAB

FAMILIES = ["qwen3", "gpt-oss", "gemma-4"]  # grouped heads; sinks and windows; soft caps and windows


@pytest.mark.parametrize("family", FAMILIES)
def test_text_is_independent_of_the_read_length(family: str, trace_of: Any, rng: np.random.Generator) -> None:
    traced = trace_of(family)
    whole, some = (Graph(traced.built("target", "tensorrt"), traced.target.caches, CACHE, rows=2) for _ in range(2))
    for start, width, reach in ((0, 12, 12), (12, 5, 20), (17, 1, 18)):
        window = target_inputs(rng.integers(2, VOCAB, (2, width)), start, width - 1, width)
        expected, out = whole(**window), some(**window, positions=np.arange(reach))
        assert out["tokens"].tolist() == expected["tokens"].tolist()
        np.testing.assert_allclose(out["logits"], expected["logits"], atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_row_beyond_the_reach_stays_finite_and_isolated(family: str, trace_of: Any, rng: np.random.Generator) -> None:
    """An idle row's: what it leaves in the caches is multiplied by zero later, so it must be numbers."""
    traced = trace_of(family)
    graphs = [Graph(traced.built("target", "tensorrt"), traced.target.caches, CACHE, rows=2) for _ in range(2)]
    window = target_inputs(rng.integers(2, VOCAB, (2, 4)), 0, 3, 4) | {"positions": np.arange(8)}
    idle = {"start": np.array([0, CACHE - 8]), "window_len": np.array([4, 0], np.int32)}
    alone, beside = graphs[0](**window), graphs[1](**window | idle)
    assert np.isfinite(beside["logits"]).all()
    np.testing.assert_array_equal(beside["logits"][0], alone["logits"][0])


@pytest.mark.parametrize("family", FAMILIES[1:])
def test_positions_before_the_attention_window_are_not_read(
    family: str, trace_of: Any, rng: np.random.Generator
) -> None:
    """Rows of different lengths in one batch: NaN would reach any layer that read it, masked or not."""
    traced = trace_of(family)
    clean, spoiled = (Graph(traced.built("target", "tensorrt"), traced.target.caches, CACHE, rows=2) for _ in range(2))
    text = target_inputs(rng.integers(2, VOCAB, (2, 40)), 0, 39, 40)
    clean(**text), spoiled(**text)
    starts, columns = np.array([40, 23]), 5
    for layer, window in enumerate(traced.target.windows):
        for row, start in enumerate(starts):
            read = start + columns - 8 * -(-(window + columns - 1) // 8)
            for kind in "kv" if window else "":
                spoiled.caches[f"{kind}_cache.{layer}"][row, :, :read] = np.nan
    verified = target_inputs(rng.integers(2, VOCAB, (2, columns)), 0, columns - 1, columns) | {"start": starts}
    expected, out = clean(**verified), spoiled(**verified)
    assert np.isfinite(out["logits"]).all()
    np.testing.assert_array_equal(out["logits"], expected["logits"])


@pytest.fixture(scope="module", params=[False, True], ids=["written", "window last"])
def reads(request: pytest.FixtureRequest) -> Callable[..., tuple[np.ndarray, np.ndarray, int]]:
    """The keys' positions and entries in a cache of 3 heads and 64 positions, with an attention window of 5."""
    types = {"q": ir.DataType.FLOAT, "start": ir.DataType.INT64, "positions": ir.DataType.INT64}
    dims = {"q": ["B", 1, "S", 1], "start": ["B"], "positions": ["R"]}
    inputs = [ir.Value(name=n, type=ir.TensorType(types[n]), shape=ir.Shape(dims[n])) for n in types]
    q, start, positions = inputs
    op = Nodes()
    read = cache_reads(op, q, start, positions, 5, ir.Shape(["B", 3, 64, 8]), window_last=request.param)
    assert read.entries is not None
    outputs = [read.positions, read.entries]
    for name, value in zip(("read", "entries"), outputs, strict=True):
        value.name, value.type = name, ir.TensorType(ir.DataType.INT64)
    graph = ir.Graph(inputs, outputs, nodes=op.nodes, opset_imports={"": 24}, name="reads")
    session = onnxruntime.InferenceSession(ir.to_proto(ir.Model(graph, ir_version=11)).SerializeToString())

    def run(starts: Sequence[int], columns: int, reach: int) -> tuple[np.ndarray, np.ndarray, int]:
        q = np.zeros((len(starts), 1, columns, 1), np.float32)
        fed = {"q": q, "start": np.array(starts), "positions": np.arange(reach)}
        return *session.run(None, fed), columns if request.param else 0

    return run


@given(
    starts=st.lists(st.integers(0, 60), min_size=1, max_size=3),
    columns=st.integers(1, 9),
    reach=st.integers(1, 64),
)
@settings(deadline=None)
def test_a_window_reads_all_that_its_queries_see_and_little_more(
    starts: list[int], columns: int, reach: int, reads: Callable[..., tuple[np.ndarray, np.ndarray, int]]
) -> None:
    reach = max(reach, columns)
    read, rows, last = reads(starts, columns, reach)
    assert read.shape[1] == rows.shape[1] + last == min(-(-(5 + columns - 1) // 8) * 8, reach)
    for row, start in enumerate(starts):
        positions, entries = read[row], rows[row] - (row * 3 + np.arange(3)) * 64
        cached = entries[:, 0]
        assert (entries == cached[:, None]).all()
        assert (np.diff(cached) == 1).all()
        assert {*cached} <= {*range(reach)}
        if last:  # what the caches hold from the window on is nowhere
            assert positions[-last:].tolist() == [*range(start, start + columns)]
            assert (positions[:-last] == np.where(cached < start, cached, 2**62)).all()
        else:
            assert positions.tolist() == cached.tolist()
        if start + columns <= reach:  # not idle
            assert {*range(max(start - 4, 0), start + columns)} <= {*positions}
