"""Columns that the target was fed and the drafter was not: held until somebody drafts, and read by the drafter then.

A text that never drafts costs the drafter nothing, whatever its prompt was. What is held is bounded: when there is no
more room, the drafter reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ....plugins.graph_contract import NEXT, TENSORS, written
from .loaded_graphs import bind, run
from .memory import Arrays

if TYPE_CHECKING:
    from .chain import Chain

_PIECE = 512  # columns of a pass over what is held


class HeldColumns:
    """The columns of one text that its drafter has yet to read: ids i64 [count] and features f32 [count, F].

    They stand at the absolute positions from ``start`` on, without a gap, and are ``most`` at most.
    """

    def __init__(self, most: int) -> None:
        self.most, self.start, self.count = most, 0, 0
        self.ids, self.features = np.empty(0, np.int64), np.empty((0, 0), np.float32)

    @property
    def end(self) -> int:
        """The absolute position behind the last of them."""
        return self.start + self.count

    @property
    def num_bytes(self) -> int:
        """The memory that they take."""
        return self.ids.nbytes + self.features.nbytes

    def add(self, ids: np.ndarray, features: np.ndarray, start: int) -> None:
        """Copy columns that stand at ``start``, behind those that are held."""
        if not self.count:
            self.start = start
        needed = self.count + len(ids)
        if needed > len(self.ids) or self.features.shape[1] != features.shape[1]:
            self._grow(max(needed, min(2 * needed, self.most)), features.shape[1])
        self.ids[self.count : needed], self.features[self.count : needed] = ids, features
        self.count = needed

    def has_room(self, count: int) -> bool:
        """Whether so many more may be held."""
        return self.count + count <= self.most

    def clear(self) -> None:
        """Hold nothing: the drafter has read it, or never will."""
        self.count = 0

    def go_on_at(self, position: int) -> None:
        """Forget what is held where ``position`` does not follow it: the drafter cannot be fed over a gap."""
        if self.end != position:
            self.clear()

    def take(self, other: HeldColumns, length: int) -> None:
        """Hold a copy of those of ``other`` in front of the absolute position ``length``, and nothing else."""
        count = min(max(length - other.start, 0), other.count)
        self.clear()
        if count:
            self.add(other.ids[:count], other.features[:count], other.start)

    def _grow(self, size: int, width: int) -> None:
        ids, features = np.empty(size, np.int64), np.empty((size, width), np.float32)
        if self.count:
            ids[: self.count], features[: self.count] = self.ids[: self.count], self.features[: self.count]
        self.ids, self.features = ids, features


def read_held(drafter: Any, held: HeldColumns, following: int, caches: Arrays, chain: Chain | None, row: int) -> None:
    """Run the drafter over all that is held, for its ``caches`` of that row alone; ``following`` is the token after it.

    ``chain`` is that of an autoregressive drafter. What is drafted on the way nobody verifies.
    """
    for first in range(0, held.count, _PIECE):
        end = min(first + _PIECE, held.count)
        token = int(held.ids[end]) if end < held.count else following
        inputs: Arrays = {
            "input_ids": held.ids[None, first:end],
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
    held.clear()
