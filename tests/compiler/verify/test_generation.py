"""The texts of two engines, and the number of accepted drafts."""

from __future__ import annotations

import pytest

from peagle.compiler.verify.generation import compare_acceptance, compare_tokens
from tests.compiler.verify.outputs import outputs


def test_greedy_tokens_are_compared_by_position() -> None:
    wide = outputs(([1, 2, 3, 4], 2, 2), ([5, 6], 1, 1))
    found = compare_tokens(wide, outputs(([1, 2, 9, 4], 2, 2), ([5, 6], 1, 1)))
    assert found.first_difference == (2, None)
    assert (found.equal_share, found.identical, found.tokens) == (5 / 6, 1, 6)
    shorter = compare_tokens(wide, outputs(([1, 2], 2, 2), ([5, 6], 1, 1)))
    assert shorter.first_difference == (2, None)
    assert shorter.equal_share == 4 / 6


def test_acceptance_length_is_of_all_rounds_together() -> None:
    wide = outputs(([0], 10, 20), ([0], 10, 10), ([0], 10, 15))
    found = compare_acceptance(wide, outputs(([0], 10, 18), ([0], 10, 9), ([0], 10, 13)), 4)
    assert found.before == 2.5
    assert found.after == pytest.approx(1 + 40 / 30)
    assert found.change == pytest.approx((1 + 40 / 30) / 2.5 - 1)
    assert 0 < found.error < 0.05
    assert compare_acceptance(wide, wide, 4).error == pytest.approx(0, abs=1e-12)
