"""Attention for TensorRT reads as much of the caches as it is told, and says the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

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
