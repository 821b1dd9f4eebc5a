"""CloseUp: the cache entries of a path become contiguous, and all others stay unchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.plugins.errors import BuildError
from peagle.plugins.ops import OPS
from tests.plugins.plugin_cases import Arrays, few, inputs_of, reference

OP = "CloseUp"


@st.composite
def moves(draw: Any) -> Arrays:
    """Rising paths in windows that may reach over both ends of the buffers, which have more rows than paths."""
    rows, columns, length = draw(st.integers(1, 3)), draw(st.integers(1, 7)), draw(st.integers(1, 20))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = draw(st.integers(1, 3)), rows + draw(st.integers(0, 2)), draw(st.integers(1, 3)), length
    path = np.full((rows, columns), -1, np.int32)
    for b in range(rows):
        count = draw(st.integers(0, columns))
        path[b, :count] = draw(st.integers(0, 3)) + np.sort(rng.choice(columns + 4, count, replace=False))
    starts = st.one_of(st.integers(0, length), st.integers(-9, 30), st.sampled_from([-(2**62), 2**62]))
    return {
        "entries": rng.integers(-128, 128, (*shape, draw(st.sampled_from([1, 6, 16, 48]))), np.int8),
        "start": np.array([draw(starts) for _ in range(rows)], np.int64),
        "path": path,
    }


def test_entries_of_the_path_follow_the_newest_token() -> None:
    entries = np.arange(12, dtype=np.int8).reshape(1, 1, 1, 12, 1)
    batch = {"entries": entries, "start": np.array([4]), "path": np.array([[0, 2, 5, -1]], np.int32)}
    assert reference(OP, batch)[0].reshape(-1).tolist() == [0, 1, 2, 3, 4, 6, 9, 7, 8, 9, 10, 11]


@few
@given(moves())
def test_only_the_positions_behind_the_newest_token_change(batch: Arrays) -> None:
    (closed,) = reference(OP, batch)
    for b in range(closed.shape[1]):
        row = np.flatnonzero((closed[:, b] != batch["entries"][:, b]).any(axis=(0, 1, 3)))
        path = batch["path"][b][batch["path"][b] >= 0] if b < len(batch["path"]) else []
        first = int(batch["start"][b]) + int(path[0]) if len(path) else 0
        assert {*row.tolist()} <= {*range(first + 1, first + len(path))}


@few
@given(moves())
def test_a_chain_moves_nothing(batch: Arrays) -> None:
    count = batch["path"].shape[1]
    batch["path"][:] = np.arange(2, count + 2)
    np.testing.assert_array_equal(reference(OP, batch)[0], batch["entries"])


@few
@given(moves())
def test_body_matches_the_reference(run_body: Any, batch: Arrays) -> None:
    np.testing.assert_array_equal(run_body(OP, inputs_of(OP, batch))[0], reference(OP, batch)[0])


def test_more_paths_than_rows_are_refused() -> None:
    with pytest.raises(BuildError, match="3 paths do not fit 2 rows"):
        OPS[OP].infer_shapes([(1, 2, 1, 9, 4), (3,), (3, 2)])
