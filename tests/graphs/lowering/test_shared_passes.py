"""Columns without a token activate no additional experts, and the results of tokens do not change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from peagle.graphs import graph_files, stream_weights
from peagle.graphs.lowering import LOWERINGS, Lowering, lower, shared_passes
from peagle.plugins.graph_contract import SKIPPED
from tests.graphs.running import Graph, target_inputs
from tests.graphs.traced import CACHE, Traced
from tests.models import VOCAB

FAMILIES = ["qwen3-moe", "gpt-oss"]
ROWS, WIDTH = 3, 5


@pytest.fixture(scope="module", params=FAMILIES)
def traced(request: pytest.FixtureRequest, trace_of: Any) -> Traced:
    found: Traced = trace_of(request.param)
    return found


def _windows(lengths: list[int], seed: int) -> dict[str, np.ndarray]:
    """Windows of a first round, of which only so many columns are of the text, and the others anything."""
    ids = np.random.default_rng(seed).integers(2, VOCAB, (ROWS, WIDTH))
    return target_inputs(ids, 0, WIDTH - 1, WIDTH) | {
        "window_len": np.array(lengths, np.int32), "draft_len": np.maximum(np.array(lengths, np.int32) - 1, 0)
    }  # fmt: skip


def _left_alone(traced: Traced, name: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The graph as if such columns had their own experts."""
    path = traced.folder / f"{name}-left-alone" / "model.onnx"
    path.parent.mkdir(exist_ok=True)
    with monkeypatch.context() as patch:
        patch.setattr(shared_passes, "share_experts", lambda model: None)
        lowered = lower(graph_files.load(traced.folder / "target.onnx"), LOWERINGS[name], cache_length=CACHE)
    stream_weights.attach(lowered, traced.pair.target_weights(), path)
    return path


lengths = st.lists(st.integers(0, WIDTH), min_size=ROWS, max_size=ROWS)


@pytest.fixture(scope="module")
def pairs(traced: Traced) -> Iterator[dict[str, tuple[Graph, Graph]]]:
    with pytest.MonkeyPatch.context() as patch:
        yield {
            name: tuple(  # type: ignore[misc]
                Graph(path, traced.target.caches, CACHE, rows=ROWS)
                for path in (_left_alone(traced, name, patch), traced.built("target", name))
            )
            for name in ("tensorrt-sm100",)
        }


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=lengths, seed=st.integers(0, 99))
def test_tokens_are_bit_identical_with_any_suffix(
    pairs: dict[str, tuple[Graph, Graph]], lengths: list[int], seed: int
) -> None:
    for before, after in pairs.values():
        window = _windows(lengths, seed)
        expected, out = before(**window), after(**window)
        for row, length in enumerate(lengths):
            np.testing.assert_array_equal(out["logits"][row, :length], expected["logits"][row, :length])
            np.testing.assert_array_equal(out["aux_hidden"][row, :length], expected["aux_hidden"][row, :length])
        assert out["tokens"].tolist() == expected["tokens"].tolist()


@pytest.fixture(scope="module")
def choosing(traced: Traced) -> Callable[[dict[str, np.ndarray]], list[np.ndarray]]:
    """The experts of every column of a window, [rows, columns, A], that each layer of the graph is given."""
    graph = traced.built("target", "tensorrt-sm100")
    model = onnx.load(graph, load_external_data=True)
    nodes = [node for node in model.graph.node if node.op_type == "TRT_MoE"]
    for node in nodes:
        model.graph.output.append(onnx.helper.make_empty_tensor_value_info(node.input[1]))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    held = Graph(graph, traced.target.caches, CACHE, rows=ROWS)

    def chosen(window: dict[str, np.ndarray]) -> list[np.ndarray]:
        chains = {SKIPPED: np.zeros_like(window["input_ids"])}
        feeds = held.whole | chains | window | held.caches
        found = session.run([node.input[1] for node in nodes], feeds)
        return [np.asarray(each).reshape(ROWS, WIDTH, -1) for each in found]

    return chosen


@settings(max_examples=8, deadline=None)
@given(lengths=lengths, seed=st.integers(0, 99))
def test_unused_experts_are_not_computed(
    choosing: Callable[[dict[str, np.ndarray]], list[np.ndarray]], lengths: list[int], seed: int
) -> None:
    for chosen in choosing(_windows(lengths, seed)):
        of_tokens = {int(i) for row, length in enumerate(lengths) for i in chosen[row, :length].ravel()}
        asked = {int(i) for i in chosen.ravel()}
        assert asked == of_tokens if any(lengths) else len(asked) == chosen.shape[-1]


@pytest.mark.parametrize("name", ["ort", "cpu", "tensorrt-sm100"])
def test_lowerings_that_read_experts_by_routing_share_them(traced: Traced, name: str) -> None:
    lowering: Lowering = LOWERINGS[name]
    model = lower(graph_files.load(traced.folder / "target.onnx"), lowering, cache_length=CACHE).model
    assert [node.op_type for node in model.graph].count("ArgMax") == 1, "one look at the windows for all layers"
