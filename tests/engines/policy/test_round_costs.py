"""Costs of rounds, learned from rounds next to each other."""

from __future__ import annotations

import pytest

from peagle.engines.policy.round_costs import RoundCosts

DRAFTS, PLAIN, SLOWED = 0.010, 0.005, 0.007  # seconds: with drafts, without, and without them directly after some


def known() -> RoundCosts:
    """Costs of which little is assumed."""
    return RoundCosts([1.0, 1.3, 1.4], 0.5)


def test_rounds_directly_after_drafts_are_not_compared_with_them() -> None:
    costs = known()
    for _ in range(20):
        for _ in range(20):
            costs.add(2, DRAFTS)
        for _ in range(20):
            costs.add(0, SLOWED)
    assert costs.num_ratios == 0
    assert costs.ratio(2) == pytest.approx(1.4)


def test_rounds_without_drafts_are_compared_with_drafts_before_them_once_they_have_settled() -> None:
    costs = known()
    for _ in range(10):
        costs.add(2, DRAFTS)
    for _ in range(31):  # 0.2 seconds, and the first two rounds
        costs.add(0, SLOWED)
    assert costs.num_ratios == 0
    for _ in range(8):
        costs.add(0, PLAIN)
    assert costs.ratio(2) == pytest.approx(DRAFTS / PLAIN, rel=0.15)


def test_drafts_are_compared_with_the_rounds_before_them_at_once() -> None:
    costs = known()
    for _ in range(60):
        costs.add(0, PLAIN)
    for _ in range(8):
        costs.add(2, DRAFTS)
    assert costs.ratio(2) == pytest.approx(DRAFTS / PLAIN, rel=0.15)


def test_the_first_round_that_verifies_drafts_after_rounds_without_is_not_compared() -> None:
    costs = known()
    for k, rounds, seconds in ((2, 3, DRAFTS), (0, 60, PLAIN)):
        for _ in range(rounds):
            costs.add(k, seconds)
        costs.begin()
    for _ in range(9):
        costs.add(0, PLAIN)
    costs.add(2, 10 * DRAFTS)
    assert costs.num_ratios == 0
    costs.add(2, DRAFTS)
    assert costs.num_ratios == 1


def test_rounds_directly_after_drafts_are_compared_if_drafts_are_far_dearer_than_assumed() -> None:
    costs = RoundCosts([1.0, 1.1, 1.2], 0.5)
    for _ in range(5):
        for _ in range(10):
            costs.add(2, 4 * SLOWED)
        for _ in range(5):
            costs.add(0, SLOWED)
    assert costs.ratio(2) == pytest.approx(4, rel=0.15)


def test_rounds_of_a_tiny_model_settle_within_forty() -> None:
    costs = known()
    for _ in range(10):
        costs.add(2, DRAFTS / 100)
    for _ in range(42):  # the first two of a K are never timed
        costs.add(0, SLOWED / 100)
    assert costs.num_ratios == 0
    costs.add(0, PLAIN / 100)
    assert costs.num_ratios == 1
