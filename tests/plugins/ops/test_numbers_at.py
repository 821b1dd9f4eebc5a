"""NumbersAt: each window reads the random numbers of the positions that it can emit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.plugins.errors import BuildError
from peagle.plugins.ops import OPS
from tests.plugins.plugin_cases import WILD, Arrays, few, inputs_of, reference

OP = "NumbersAt"


def table(rows: list[tuple[int, int, int]], length: int) -> Arrays:
    """A batch of (start, window_len, draft_len); the number at a position of row b is b + position / 1000."""
    start, window_len, draft_len = zip(*rows, strict=True)
    return {
        "numbers": np.array([[b + p / 1000 for p in range(length)] for b in range(len(rows))], np.float32),
        "start": np.array(start, np.int64),
        "window_len": np.array(window_len, np.int32),
        "draft_len": np.array(draft_len, np.int32),
    }


@st.composite
def tables(draw: Any) -> tuple[Arrays, int]:
    """Any table, any lengths, and a number of columns."""
    length = draw(st.integers(1, 20))
    number = st.one_of(st.integers(0, 9), st.sampled_from(WILD))
    start = st.one_of(st.integers(0, 20), st.sampled_from([-(2**62), -1, 2**62]))
    rows = draw(st.lists(st.tuples(start, number, number), min_size=1, max_size=5))
    return table(rows, length), draw(st.integers(1, 9))


def test_columns_follow_the_newest_token() -> None:
    """A decode window of the newest token and 3 drafts at 10 emits positions 11..14; a prompt chunk of 5 emits 15."""
    (uniform,) = reference(OP, table([(10, 4, 3), (10, 5, 0)], 30), columns=4)
    np.testing.assert_allclose(uniform, [[0.011, 0.012, 0.013, 0.014], [1.015, 1.016, 1.017, 1.018]], rtol=1e-6)


def test_numbers_past_the_table_and_of_idle_rows_are_zero() -> None:
    (uniform,) = reference(OP, table([(1, 2, 1), (3, 1, 0), (0, 0, 0)], 4), columns=3)
    np.testing.assert_allclose(uniform, [[0.002, 0.003, 0], [0, 0, 0], [0, 0, 0]], rtol=1e-6)


@few
@given(tables())
def test_body_matches_the_reference(run_body: Any, case: tuple[Arrays, int]) -> None:
    batch, columns = case
    (body,) = run_body(OP, inputs_of(OP, batch), columns=columns)
    np.testing.assert_array_equal(body, reference(OP, batch, columns=columns)[0])


@pytest.mark.parametrize("attributes", [{}, {"columns": 0}, {"columns": -3}])
def test_columns_must_be_given(attributes: dict[str, int]) -> None:
    with pytest.raises(BuildError, match="columns must be 1 or more"):
        OPS[OP].check_attributes(attributes)


def test_the_shape_follows_the_attribute() -> None:
    assert OPS[OP].infer_shapes([(3, 50), (3,), (3,), (3,)], {"columns": 9}) == [(3, 9)]
    with pytest.raises(BuildError, match="at least 1 column"):
        OPS[OP].infer_shapes([(3, 0), (3,), (3,), (3,)], {"columns": 9})
