"""Ranges depend only on the observed values, and each method satisfies its definition."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.compiler.precision.calibration.histogram import Histogram
from peagle.compiler.precision.calibration.range_methods import Max, Method, Mse, Percentile, RoundedTo, rounded

METHODS = (Max(), Percentile(99.0), Percentile(100.0), Mse("e4m3", 20), Mse("int8", 20))
FLOATS = st.floats(-1e4, 1e4, width=32)


def amax(method: Method, *parts: torch.Tensor) -> float:
    observer = method.observer()
    for part in parts:
        observer.observe(part, float(part.abs().max()))
    return observer.amax()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(FLOATS, min_size=1), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_order_and_batching_do_not_matter(batches: list[list[float]], random: Random) -> None:
    shuffled = [value for batch in batches for value in batch]
    random.shuffle(shuffled)
    for method in METHODS:
        parts = amax(method, *(torch.tensor(batch) for batch in batches))
        assert parts == amax(method, torch.tensor(shuffled))
        assert 0 <= parts <= max(abs(value) for value in shuffled)


@settings(max_examples=50, deadline=None)
@given(st.lists(FLOATS, min_size=1, max_size=60))
def test_every_value_is_counted_in_its_bucket(values: list[float]) -> None:
    seen = Histogram()
    for value in values:
        seen.add(torch.tensor([value]))
    lower, upper, counts = seen.buckets()
    sizes = np.abs(np.array(values, np.float32)).astype(np.float64)
    sizes = sizes[sizes >= 2.0**-40]
    assert seen.zeros == len(values) - len(sizes)
    assert counts.tolist() == [
        int(((sizes >= low) & (sizes < high)).sum()) for low, high in zip(lower, upper, strict=True)
    ]
    assert seen.total == len(values)
    assert np.all(upper / lower <= 1 + 2.0**-9)


def normal(count: int, outlier: float = 0.0) -> torch.Tensor:
    values = torch.randn(count, generator=torch.Generator().manual_seed(0))
    values[0] = outlier or values[0]
    return values


@pytest.mark.parametrize("percent", [50.0, 99.0, 99.9])
def test_a_percentile_is_reached_by_that_share(percent: float) -> None:
    values = normal(20_000)
    kept = (values.abs() <= amax(Percentile(percent), values)).double().mean().item() * 100
    assert percent <= kept < percent + 0.3


def test_an_outlier_moves_the_maximum_and_not_the_percentile() -> None:
    plain, outlier = normal(20_000), normal(20_000, 100.0)
    assert amax(Max(), outlier) == 100.0
    assert amax(Percentile(99.9), outlier) == pytest.approx(amax(Percentile(99.9), plain), rel=0.02)


@pytest.mark.parametrize("number_format", ["e4m3", "int8"])
@pytest.mark.parametrize("outlier", [0.0, 30.0, 1e4])
def test_mse_finds_a_clip_as_good_as_the_best_of_an_exact_search(number_format: RoundedTo, outlier: float) -> None:
    values = normal(4000, outlier).abs().double().numpy()

    def error(clip: float) -> float:
        return float(np.square(values - rounded(values, clip, number_format)).sum())

    found = amax(Mse(number_format, 50), torch.tensor(values, dtype=torch.float32))
    best = min(error(values.max() * step / 50) for step in range(1, 51))
    assert error(found) <= 1.01 * best


def test_int8_clips_outliers_that_e4m3_has_room_for() -> None:
    values = normal(100_000, 12.0)
    assert amax(Mse("int8"), values) < 0.7 * amax(Mse("e4m3"), values)


def test_e4m3_rounding_is_that_of_the_type() -> None:
    values = np.linspace(0, 500, 3001)
    expected = torch.tensor(values).clamp(max=448).to(torch.float8_e4m3fn).double().numpy()
    assert rounded(values, 448.0, "e4m3").tolist() == expected.tolist()


def test_zeros_alone_have_no_range() -> None:
    assert [amax(method, torch.zeros(5)) for method in METHODS] == [0.0] * len(METHODS)
