"""Deferred drafter input: columns that only the target has processed, stored until the drafter runs.

Requests that never draft therefore cost no drafter time until their storage is full. Then the drafter reads the first
columns, only some at a time, because other requests wait in the meantime.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ....plugins.graph_contract import NEXT, TENSORS, written
from .loaded_graphs import bind, run
from .memory import Arrays

if TYPE_CHECKING:
    from .chain import Chain

_PIECE = 512  # columns per drafter pass
FREED = 128  # columns that are read at once where the storage is full


class PendingColumns:
    """The columns of one request that its drafter has not read yet: ``count`` ids, and their features f32 [count, F].

    They are contiguous, begin at absolute position ``start``, and number at most ``capacity``. Memory for the features
    of ``capacity`` columns is reserved with the first one. ``clear`` keeps it, so that another request can use it: the
    first write to a page of fresh memory takes as long as the rest of a round's bookkeeping.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity, self.start = capacity, 0
        self.ids: list[int] = []
        self.features = np.empty((0, 0), np.float32)

    @property
    def count(self) -> int:
        """Number of columns."""
        return len(self.ids)

    @property
    def end(self) -> int:
        """The absolute position after the last column."""
        return self.start + self.count

    @property
    def num_bytes(self) -> int:
        """The memory in bytes."""
        return np.dtype(np.int64).itemsize * self.count + self.features.nbytes

    def add(self, ids: Sequence[int], features: np.ndarray, start: int) -> None:
        """Append a copy of columns that begin at ``start``, directly after the stored ones."""
        count = self.count
        if not count:
            self._begin(start, features.shape[1])
        self.features[count : count + len(ids)] = features
        self.ids.extend(ids)

    def has_room(self, count: int) -> bool:
        """Return True if ``count`` more columns fit."""
        return self.count + count <= self.capacity

    def clear(self) -> None:
        """Discard all columns."""
        self.ids.clear()

    def drop(self, count: int) -> None:
        """Discard the first ``count`` columns, or all if there are fewer."""
        rest = max(self.count - count, 0)
        self.features[:rest] = self.features[self.count - rest : self.count]
        self.start = self.end - rest
        del self.ids[: self.count - rest]

    def resume_at(self, position: int) -> None:
        """Discard all columns unless ``position`` directly follows them: the drafter's input must have no gap."""
        if self.end != position:
            self.clear()

    def between(self, start: int, end: int) -> PendingColumns:
        """Return a copy of the columns from absolute position ``start`` up to ``end``."""
        first, last = (min(max(position - self.start, 0), self.count) for position in (start, end))
        copy = PendingColumns(last - first)
        copy.append(self, first, last)
        return copy

    def append(self, other: PendingColumns, first: int = 0, last: int | None = None) -> None:
        """Append columns of ``other``, all by default; they directly follow the stored ones."""
        last = other.count if last is None else last
        if last > first:
            self.add(other.ids[first:last], other.features[first:last], other.start + first)

    def _begin(self, start: int, width: int) -> None:
        self.start = start
        if self.features.shape != (self.capacity, width):
            self.features = np.empty((self.capacity, width), np.float32)


def read_pending(
    drafter: Any,
    held: PendingColumns,
    following: int,
    caches: Arrays,
    chain: Chain | None,
    row: int,
    max_columns: int | None = None,
) -> None:
    """Run the drafter over all deferred columns, for the ``caches`` of that row; ``following`` is the next token.

    ``chain`` is that of an autoregressive drafter. The resulting drafts are discarded. With ``max_columns``, only the
    first so many columns are read.
    """
    count = held.count if max_columns is None else min(max_columns, held.count)
    for first in range(0, count, _PIECE):
        end = min(first + _PIECE, count)
        token = held.ids[end] if end < held.count else following
        inputs: Arrays = {
            "input_ids": np.array([held.ids[first:end]], np.int64),
            "aux_hidden": held.features[None, first:end],
            "start": np.full(1, held.start + first, np.int64),
            "window_len": np.full(1, end - first, np.int32),
            "draft_len": np.zeros(1, np.int32),
            "tokens": np.array([[token, -1]], np.int32),
            "num_tokens": np.ones(1, np.int32),
        }
        outputs = {name: np.zeros((1, 2) if name == NEXT[0] else 1, TENSORS[name].dtype) for name in NEXT}
        if chain:
            inputs, outputs = inputs | chain.reads(row, 1), outputs | chain.writes(row, 1)
        run(drafter, bind(drafter, inputs | caches, outputs | {written(name): each for name, each in caches.items()}))
    held.drop(count)
