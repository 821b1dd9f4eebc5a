"""The cost measurement of rounds: every K takes turns, and only rounds that ran as planned are timed."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.engines.policy.drafts_per_round import ObservedRound, RoundAhead, RoundRow
from peagle.engines.policy.sweep import Sweep, near_fastest

COUNTS = (0, 1, 2, 4, 8)


def run(
    sweep: Sweep,
    costs: Sequence[float],
    rounds: int,
    rows: int,
    seed: int = 0,
    noise: float = 0.0,
    accepts: Sequence[float] = (0.9,) * 8,
) -> list[int]:
    """Run rounds of ``rows`` texts; costs are in K, and the machine gets slower all the time.

    ``accepts`` are the acceptance rates of the drafts of a chain, each given that the one before it was accepted.
    """
    dice, drafted, ks = random.Random(seed), 0, list[int]()
    for at in range(rounds):
        ahead = RoundAhead([RoundRow(object(), "peagle")] * rows, rows)
        k = sweep.choose(ahead)
        verified, drafted = min(drafted, k), k
        pace = (1 + at / 1000) * (1 + noise * dice.random())
        outcomes = [(verified, range(_accepted(verified, accepts, dice))) for _ in range(rows)]
        sweep.learn(ObservedRound(ahead, k, outcomes, pace * costs[k]))
        ks.append(k)
    return ks


def _accepted(verified: int, accepts: Sequence[float], dice: random.Random) -> int:
    return next((at for at in range(verified) if dice.random() >= accepts[at]), verified)


def costs_of(sweep: Sweep) -> list[float]:
    return [each.cost for each in sweep.measured.values()]


@given(st.lists(st.floats(1, 1.5), min_size=8, max_size=8), st.integers(1, 4))
def test_costs_are_those_of_the_rounds_while_the_machine_gets_slower(more: list[float], rows: int) -> None:
    sweep, costs = Sweep(COUNTS, rows), [1.0, *more]
    ks = run(sweep, costs, 150, rows)
    assert set(ks) == set(COUNTS)
    assert sweep.cycles > 3
    assert costs_of(sweep) == pytest.approx([costs[k] for k in COUNTS], rel=0.03)


def test_slow_moments_do_not_decide() -> None:
    sweep = Sweep(COUNTS, 1)
    run(sweep, [1.0 + 0.1 * k for k in range(9)], 600, 1, noise=0.2)
    assert costs_of(sweep) == pytest.approx([1.0, 1.1, 1.2, 1.4, 1.8], rel=0.06)


def test_rounds_of_other_numbers_of_texts_are_not_timed() -> None:
    sweep = Sweep(COUNTS, 4)
    run(sweep, [1.0] * 9, 150, 3)
    assert (sweep.cycles, sweep.measured) == (0, {})
    run(sweep, [1.0] * 9, 40, 4)
    assert sweep.cycles == 1


def test_the_first_round_of_a_k_is_not_timed() -> None:
    sweep, ahead, first = Sweep((0, 1), 1), RoundAhead([RoundRow(object(), "peagle")], 1), True
    for _ in range(30):
        k = sweep.choose(ahead)
        sweep.learn(ObservedRound(ahead, k, [(k, range(0))], (9.0 if first else 1.0) + k))
        first = sweep.choose(ahead) != k
    assert costs_of(sweep) == pytest.approx([1.0, 2.0])


def test_rounds_without_drafts_are_timed_when_they_have_settled() -> None:
    """After drafts, rounds without them take a third longer at first, and approach their pace within 60 ms."""
    sweep, ahead, warm = Sweep((0, 1, 2), 1), RoundAhead([RoundRow(object(), "peagle")], 1), 0.0
    for _ in range(1000):
        k = sweep.choose(ahead)
        seconds = 0.009 + 0.001 * k if k else 0.005 * (4 / 3 - warm / 3)
        warm = 0.0 if k else warm + (1 - warm) * seconds / 0.06
        sweep.learn(ObservedRound(ahead, k, [(k, range(0))], seconds))
    assert sweep.cycles > 3
    assert costs_of(sweep) == pytest.approx([1.0, 2.0, 2.2], rel=0.03)


def test_drafts_that_were_made_for_another_k_are_not_timed() -> None:
    sweep, ahead = Sweep((0, 4), 1), RoundAhead([RoundRow(object(), "peagle")], 1)
    for _ in range(6):  # the drafter never drafts that many
        sweep.learn(ObservedRound(ahead, sweep.choose(ahead), [(min(sweep.choose(ahead), 1), ())], 1.0))
    assert (sweep.choose(ahead), sweep.cycles) == (4, 0)


def test_accepted_drafts_count_for_every_k_that_verifies_them() -> None:
    sweep = Sweep(range(5), 2)
    run(sweep, [1.0] * 5, 2000, 2, accepts=(0.8, 0.5, 0.25, 0.0))
    tokens = [each.tokens for each in sweep.measured.values()]
    assert tokens == pytest.approx([1.0, 1.8, 2.2, 2.3, 2.3], rel=0.05)
    assert tokens == sorted(tokens)


def test_k_far_behind_is_left_out_after_a_few_cycles_and_plain_rounds_never() -> None:
    sweep = Sweep(COUNTS, 1)
    ks = run(sweep, [4.0, 4.0, 5.0, 5.5, 6.0, 20.0, 20.0, 20.0, 20.0], 400, 1)
    cycles = {k: len(each.seconds) for k, each in sweep.measured.items()}
    assert cycles[8] == 4 < cycles[4] == cycles[0] == sweep.cycles
    assert {0, 4} <= set(ks[-60:]) <= {0, 1, 2, 4}
    assert sweep.measured[8].cost == pytest.approx(5, rel=0.03)
    assert near_fastest({0: 1.0, 1: 2.0, 2: 4.0, 3: 3.1}) == {0, 2, 3}
