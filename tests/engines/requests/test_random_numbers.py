"""The random number of a position depends only on the seed and the position."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.engines.requests.random_numbers import uniform_stream


@given(seed=st.integers(-(2**70), 2**70), length=st.integers(1, 300), prefix=st.integers(0, 300))
def test_the_number_of_a_position_does_not_depend_on_how_many_are_drawn(seed: int, length: int, prefix: int) -> None:
    longer, shorter = uniform_stream(seed, length + prefix), uniform_stream(seed, length)
    np.testing.assert_array_equal(longer[:length], shorter)
    assert shorter.dtype == np.float32
    assert (shorter >= 0).all()
    assert (shorter < 1).all()


def test_numbers_are_spread_evenly_and_differ_between_seeds() -> None:
    a, b = uniform_stream(1, 20_000), uniform_stream(2, 20_000)
    counts = np.histogram(a, bins=20, range=(0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 45  # chi-square, 19 degrees of freedom, 0.1 %
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.03
    assert abs(np.corrcoef(a[1:], a[:-1])[0, 1]) < 0.03


def test_the_stream_of_a_seed_never_changes() -> None:
    """Text that somebody reproduces with a seed depends on these very numbers."""
    assert uniform_stream(7, 4).tolist() == pytest.approx([0.8720734, 0.2953653, 0.4200976, 0.4053922], abs=1e-7)
