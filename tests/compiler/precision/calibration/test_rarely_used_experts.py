"""Experts with few tokens are reported, and an expert without tokens gets the largest range of its layer."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from peagle.compiler.precision.calibration.rarely_used_experts import (
    FEWEST,
    fill_unseen,
    rarely_used_experts,
    warn_rarely_used,
)

EXPERTS = "model.layers.0.mlp.experts"


def test_unseen_experts_take_the_largest_range_of_the_layer() -> None:
    inputs = {
        "lm_head.weight": np.float32(9),
        f"{EXPERTS}.gate_up_proj": np.array([1, 0, 3], np.float32),
        f"{EXPERTS}.down_proj": np.array([2, 0, 6], np.float32),
        "model.layers.1.mlp.experts.down_proj": np.array([7, 8, 9], np.float32),
    }
    filled = fill_unseen(inputs, {EXPERTS: np.array([4, 0, 9]), "model.layers.1.mlp.experts": np.array([1, 1, 1])})
    assert filled[f"{EXPERTS}.gate_up_proj"].tolist() == [1, 3, 3]
    assert filled[f"{EXPERTS}.down_proj"].tolist() == [2, 6, 6]
    assert {n: v.tolist() for n, v in filled.items() if EXPERTS not in n} == {
        n: v.tolist() for n, v in inputs.items() if EXPERTS not in n
    }


@given(st.lists(st.tuples(st.floats(2**-6, 2**6, width=32), st.integers(0, 3)), min_size=1, max_size=8))
def test_filled_range_covers_the_largest_of_any_expert(seen: list[tuple[float, int]]) -> None:
    counts = np.array([count for _, count in seen])
    ranges = np.array([largest if count else 0 for largest, count in seen], np.float32)
    filled = fill_unseen({f"{EXPERTS}.down_proj": ranges}, {EXPERTS: counts})[f"{EXPERTS}.down_proj"]
    assert np.array_equal(filled[counts > 0], ranges[counts > 0])
    assert np.all(filled[counts == 0] == ranges.max())


def test_experts_with_few_tokens_are_named_the_fewest_first() -> None:
    counts = {f"{EXPERTS}": np.array([FEWEST, FEWEST - 1, 0]), "other": np.array([1000, 3])}
    few = rarely_used_experts(counts)
    assert [(each.module, each.expert, each.tokens) for each in few] == [
        (EXPERTS, 2, 0), ("other", 1, 3), (EXPERTS, 1, FEWEST - 1),
    ]  # fmt: skip
    (warning,) = warn_rarely_used(counts)
    assert warning.startswith("1 of 5 experts saw no tokens and use their layer's largest range, 2 of 5 experts saw ")
    assert f"{EXPERTS} 2 (0), other 1 (3), {EXPERTS} 1 (63); " in warning
    assert "--calib-samples" in warning


def test_of_many_some_are_named_and_the_rest_counted() -> None:
    (warning,) = warn_rarely_used({f"layer.{i}": np.zeros(128, np.int64) for i in range(48)})
    assert "6144 of 6144 experts saw no token" in warning
    assert "layer.0 4 (0), 6139 more, listed in the report;" in warning


def test_well_sampled_experts_cause_no_warning() -> None:
    assert warn_rarely_used({EXPERTS: np.full(8, FEWEST)}) == []
    assert warn_rarely_used({}) == []
