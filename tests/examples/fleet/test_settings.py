"""The drafter of each replica while a canary runs."""

from __future__ import annotations

import math
from fractions import Fraction

from fleet.settings import Drafters
from hypothesis import given
from hypothesis import strategies as st

SHARES = st.fractions(0, 1, max_denominator=100).filter(lambda share: 0 < share < 1)


@given(SHARES, st.integers(1, 60))
def test_the_share_of_replicas_is_rounded_up(share: Fraction, replicas: int) -> None:
    drafters = Drafters("prose", "code", share)
    used = [drafters.of(rank) for rank in range(replicas)]
    assert used.count("code") == math.ceil(replicas * share)
    assert used.count("prose") == replicas - used.count("code")


def test_one_of_two_replicas_is_the_canary_for_any_share_up_to_a_half() -> None:
    for share in (Fraction(1, 100), Fraction(1, 4), Fraction(1, 2)):
        assert [Drafters(None, "code", share).of(rank) for rank in range(2)] == ["code", None]


def test_promotion_and_rollback_end_the_canary() -> None:
    canary = Drafters("prose", "code", Fraction(1, 2))
    assert {canary.promoted().of(rank) for rank in range(9)} == {"code"}
    assert {canary.rolled_back().of(rank) for rank in range(9)} == {"prose"}


def test_without_a_canary_all_replicas_use_the_drafter_of_the_build() -> None:
    assert {Drafters().of(rank) for rank in range(9)} == {None}
