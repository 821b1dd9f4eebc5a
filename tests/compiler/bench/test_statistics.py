"""Statistics of a benchmark: NumPy's quartiles, and an exact sign test."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.compiler.bench.statistics import MIN_PAIRS, PairedRatios, Spread, sign_test

numbers = st.floats(0.01, 1e6)


@given(st.lists(numbers, min_size=1, max_size=30))
def test_quartiles_are_those_of_numpy_and_in_order(values: list[float]) -> None:
    spread = Spread.of(values)
    assert [spread.low, spread.median, spread.high] == pytest.approx(np.percentile(values, [25, 50, 75]))
    assert min(values) * (1 - 1e-9) <= spread.low <= spread.median <= spread.high <= max(values) * (1 + 1e-9)


@given(st.integers(0, 5), st.integers(0, 5))
def test_sign_test_counts_the_outcomes_that_are_at_least_as_uneven(wins: int, losses: int) -> None:
    count, apart = wins + losses, abs(wins - losses)
    outcomes = [abs(2 * sum(coins) - count) for coins in itertools.product((0, 1), repeat=count)]
    assert sign_test(wins, losses) == pytest.approx(sum(each >= apart for each in outcomes) / len(outcomes))


def test_sign_test_takes_any_number_of_turns() -> None:
    assert sign_test(5000, 5000) == pytest.approx(1, abs=0.01)
    assert 0 <= sign_test(10_000, 0) < 1e-300


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=20))
def test_reversed_comparison_exchanges_wins_and_losses(pairs: list[tuple[float, float]]) -> None:
    ours, theirs = zip(*pairs, strict=True)
    there, back = PairedRatios.of(ours, theirs), PairedRatios.of(theirs, ours)
    assert (there.wins, there.losses) == (back.losses, back.wins)
    assert there.p == back.p
    assert there.wins + there.losses == sum(a != b for a, b in pairs)


def test_p_value_can_show_a_difference_from_this_number_of_pairs_on() -> None:
    assert sign_test(MIN_PAIRS, 0) < 0.05 < sign_test(MIN_PAIRS - 1, 0)


@given(st.lists(numbers, min_size=2, max_size=20))
def test_machine_that_slows_down_changes_no_paired_ratio(speeds: list[float]) -> None:
    ratios = PairedRatios.of([3 * speed for speed in speeds], speeds)
    assert [ratios.ratio.low, ratios.ratio.median, ratios.ratio.high] == pytest.approx([3, 3, 3])
    assert (ratios.wins, ratios.losses) == (len(speeds), 0)
