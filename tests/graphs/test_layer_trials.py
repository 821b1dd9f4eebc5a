"""Results extrapolated from a few layers equal those of the whole graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.graphs import graph_files, layer_trials
from peagle.graphs.layer_trials import base_layers
from peagle.graphs.lowering import LOWERINGS
from tests.graphs.traced import CACHE, Traced
from tests.models import CONFIGS


def _operators(model: ir.Model) -> Counter[str]:
    return Counter(f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in model.graph)


@pytest.mark.parametrize(
    "family",
    ["qwen3-moe", pytest.param("gpt-oss", marks=pytest.mark.slow), pytest.param("gemma-4", marks=pytest.mark.slow)],
)
@pytest.mark.usefixtures("trials_once")
def test_extrapolated_operators_match_the_full_trace(family: str, trace_of: Callable[[str], Traced]) -> None:
    traced = trace_of(family)
    trials = layer_trials.run_trials(CONFIGS[family], traced.target)
    assert trials.traced_layers < traced.target.num_layers
    assert trials.operators() == _operators(graph_files.load(traced.folder / "target.onnx"))
    for lowering in LOWERINGS:
        whole = traced.lowered("target", lowering).model
        assert trials.operators(LOWERINGS[lowering]) == _operators(whole), lowering
        tables = [v.const_value for n, v in whole.graph.initializers.items() if n.endswith((".cos", ".sin"))]
        assert trials.table_bytes(LOWERINGS[lowering]) * CACHE == sum(table.nbytes for table in tables) > 0
    base, other = trials.base, trials.rewritten(lambda model: None).base
    assert base.lowered(LOWERINGS["std"]) is base.lowered(LOWERINGS["std"]) is not other.lowered(LOWERINGS["std"])


@given(st.lists(st.sampled_from(["full", "sliding", "dense"]), min_size=1, max_size=40), st.integers(1, 9))
def test_the_base_has_every_kind_room_for_the_taps_and_the_last_layer(kinds: list[str], taps: int) -> None:
    layers = base_layers(kinds, taps)
    assert layers == sorted(set(layers))
    assert {kinds[i] for i in layers} == set(kinds)
    assert len(layers) >= min(taps, len(kinds))
    assert layers[-1] == len(kinds) - 1


def test_base_trace_stays_small() -> None:
    assert base_layers(["sliding", "full"] * 30, 3) == [0, 58, 59]
