"""Measuring the costs of rounds: every K takes turns, and only rounds that ran as they were planned are timed."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.engines.policy.drafts_per_round import ObservedRound, RoundAhead, RoundRow
from peagle.engines.policy.sweep import Sweep

COUNTS = (0, 1, 2, 4, 8)


def run(sweep: Sweep, costs: Sequence[float], rounds: int, rows: int, seed: int = 0, noise: float = 0.0) -> list[int]:
    """Run rounds of ``rows`` texts; costs are in K, and the machine gets slower all the time."""
    dice, drafted, ks = random.Random(seed), 0, list[int]()
    for at in range(rounds):
        ahead = RoundAhead([RoundRow(object(), "peagle")] * rows, rows)
        k = sweep.choose(ahead)
        verified, drafted = min(drafted, k), k
        pace = (1 + at / 1000) * (1 + noise * dice.random())
        sweep.learn(ObservedRound(ahead, k, [(verified, range(0))] * rows, pace * costs[k]))
        ks.append(k)
    return ks


@given(st.lists(st.floats(1, 5), min_size=8, max_size=8), st.integers(1, 4))
def test_costs_are_those_of_the_rounds_while_the_machine_gets_slower(more: list[float], rows: int) -> None:
    sweep, costs = Sweep(COUNTS, rows), [1.0, *more]
    ks = run(sweep, costs, 100, rows)
    assert set(ks) == set(COUNTS)
    assert sweep.cycles > 3
    assert sweep.costs == pytest.approx([costs[k] for k in COUNTS], rel=0.02)


def test_slow_moments_do_not_decide() -> None:
    sweep = Sweep(COUNTS, 1)
    run(sweep, [1.0 + 0.1 * k for k in range(9)], 300, 1, noise=0.2)
    assert sweep.costs == pytest.approx([1.0, 1.1, 1.2, 1.4, 1.8], rel=0.06)


def test_rounds_of_other_numbers_of_texts_are_not_timed() -> None:
    sweep = Sweep(COUNTS, 4)
    run(sweep, [1.0] * 9, 100, 3)
    assert (sweep.cycles, sweep.costs) == (0, ())
    run(sweep, [1.0] * 9, 50, 4)
    assert sweep.cycles == 1


def test_the_first_round_of_a_k_is_not_timed() -> None:
    sweep, ahead, first = Sweep((0, 1), 1), RoundAhead([RoundRow(object(), "peagle")], 1), True
    for _ in range(30):
        k = sweep.choose(ahead)
        sweep.learn(ObservedRound(ahead, k, [(k, range(0))], (9.0 if first else 1.0) + k))
        first = sweep.choose(ahead) != k
    assert sweep.costs == pytest.approx([1.0, 2.0])


def test_drafts_that_were_made_for_another_k_are_not_timed() -> None:
    sweep, ahead = Sweep((0, 4), 1), RoundAhead([RoundRow(object(), "peagle")], 1)
    for _ in range(6):  # the drafter never drafts as many
        sweep.learn(ObservedRound(ahead, sweep.choose(ahead), [(min(sweep.choose(ahead), 1), ())], 1.0))
    assert (sweep.choose(ahead), sweep.cycles) == (4, 0)
