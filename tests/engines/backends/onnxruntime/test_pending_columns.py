"""Columns that wait for the drafter are contiguous and bounded, and are copied with a kept prompt."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from peagle.engines.backends.onnxruntime.pending_columns import PendingColumns


def columns(start: int, count: int) -> tuple[list[int], np.ndarray, int]:
    """Columns whose ids are their positions."""
    ids = np.arange(start, start + count)
    return ids.tolist(), np.stack([ids, -ids], axis=1).astype(np.float32), start


@given(st.integers(0, 9), st.lists(st.integers(1, 30), max_size=8), st.integers(0, 300), st.integers(0, 40))
def test_pending_columns_are_returned_and_parts_are_copied(
    start: int, counts: list[int], first: int, count: int
) -> None:
    held, position = PendingColumns(100), start
    for count in counts:
        if held.has_room(count):
            held.add(*columns(position, count))
            position += count
    assert held.count == position - start <= 100
    assert held.ids == [*range(start, position)]
    copy = held.between(first, first + count)
    expected = [at for at in range(start, position) if first <= at < first + count]
    held.features[:] = 7
    assert copy.ids == expected
    other = PendingColumns(100)
    other.append(copy)
    if expected:
        assert copy.start == other.start == expected[0]
    assert other.ids == expected
    assert other.features[: other.count].tolist() == [[at, -at] for at in expected]


def test_gap_discards_pending_columns() -> None:
    held = PendingColumns(10)
    held.add(*columns(3, 4))
    held.resume_at(7)
    assert held.count == 4
    held.resume_at(8)
    assert held.count == 0
    held.add(*columns(8, 1))
    assert (held.start, held.end) == (8, 9)


@given(st.integers(0, 20), st.integers(0, 25))
def test_the_first_columns_are_dropped(count: int, dropped: int) -> None:
    held = PendingColumns(30)
    held.add(*columns(3, count))
    held.drop(dropped)
    expected = [*range(3, 3 + count)][dropped:]
    assert held.ids == expected
    assert held.features[: held.count].tolist() == [[at, -at] for at in expected]
    assert (held.end, held.count) == (3 + count, len(expected))
    held.add(*columns(held.end, 5))
    assert held.ids == [*expected, *range(3 + count, 8 + count)]
