"""Threads share the work on a stream: results stay in order, memory is bounded, and errors are raised."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Generator
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.compiler.precision.rounding import in_order as module
from peagle.compiler.precision.rounding.in_order import in_order
from peagle.graphs.targets.checkpoint_pieces import UnreadRows
from peagle.plugins.errors import BuildError


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(0, 5), max_size=20), threads=st.integers(1, 4), seed=st.integers(0, 9))
def test_results_keep_submission_order(sizes: list[int], threads: int, seed: int) -> None:
    pauses = np.random.default_rng(seed).random(sum(sizes) + 1) * 1e-3

    def work(begin: int, values: np.ndarray) -> list[int]:
        time.sleep(pauses[begin])
        return [begin, *values]

    ends = np.cumsum([0, *sizes])
    rows = [np.arange(begin, end) for begin, end in itertools.pairwise(ends)]
    found = list(in_order(work, map(UnreadRows.of, rows), threads))
    assert found == [[begin, *run] for begin, run in zip(ends, rows, strict=False)]


@pytest.mark.parametrize(("room", "most"), [(1 << 30, 4), (400, 2), (1, 1)])
def test_few_results_are_held_at_a_time(room: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each of three threads and one that waits, and no more than there is room for."""
    monkeypatch.setattr(module, "ROOM", room)
    begun, taken = [], 0

    def read() -> np.ndarray:
        begun.append(taken)
        return np.zeros(50, np.float32)

    for _ in in_order(lambda _, values: values.size, (UnreadRows(50, read) for _ in range(20)), 3):
        taken += 1
    assert taken == len(begun) == 20
    assert all(at - before < most for at, before in enumerate(begun))


def test_thread_error_is_raised_to_the_consumer() -> None:
    def work(begin: int, _: np.ndarray) -> int:
        if begin == 6:
            raise BuildError("the seventh is not a number")
        return begin

    found = []
    with pytest.raises(BuildError, match="the seventh"):
        found.extend(in_order(work, (UnreadRows.of(np.zeros(2)) for _ in range(9)), 2))
    assert found in ([], [0, 2, 4])


def test_who_stops_early_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    results = in_order(lambda begin, _: begin, (UnreadRows.of(np.zeros(1)) for _ in range(100)), 3)
    assert (next(results), next(results)) == (0, 1)
    cast("Generator[int]", results).close()
    assert threading.active_count() == before
