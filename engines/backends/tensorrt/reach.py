"""How much of the caches a pass reads: the least of a few lengths that holds what every busy row can see.

A plan is told by a size, which the host must know when it launches a pass, and results come late. So of every row the
host knows the most that it can hold: where its window was, and all that rounds may have added that were not read yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ...folder.records import Part


def lengths_of(parts: Iterable[Part], cache_length: int) -> tuple[int, ...]:
    """Lengths R that every profile covers, each four times the one before, and the whole cache at last.

    Plans that are not told read all of their caches, whatever R is.
    """
    plans = [part.plan for part in parts if part.plan and part.reads_positions]
    sizes = [profile.positions for plan in plans for profile in plan.profiles]
    most = min([cache_length, *(each[-1] for each in sizes)])
    length = max([1, *(each[0] for each in sizes)]) if sizes else most
    lengths = []
    while 2 * length <= most:  # one that is nearly all of the cache would bring little
        lengths.append(length)
        length *= 4
    return (*lengths, most)


class Reach:
    """Follows where the windows of all slots begin."""

    def __init__(self, lengths: Sequence[int], slots: int) -> None:
        self.lengths = tuple(lengths)
        self._starts: list[int | None] = [None] * slots  # at most; None of an idle row
        self._tenants = [0] * slots

    def place(self, slot: int, start: int | None) -> None:
        """Note that a slot's window begins at ``start``, or with None that it is idle."""
        self._starts[slot] = start
        self._tenants[slot] += 1

    def launched(self, drafted: Sequence[int]) -> Callable[[np.ndarray], None]:
        """Note a round that verifies so many drafts in each row. What it returns is told how many tokens came of it."""
        most, tenants = [count + 1 for count in drafted], tuple(self._tenants)
        self._starts = [None if start is None else start + each for start, each in zip(self._starts, most, strict=True)]

        def came(num_tokens: np.ndarray) -> None:
            for slot, start in enumerate(self._starts):
                if start is not None and self._tenants[slot] == tenants[slot]:
                    self._starts[slot] = start - most[slot] + int(num_tokens[slot])

        return came

    def of_windows(self, columns: int) -> int:
        """The length that holds so many columns of every busy window."""
        return self.holding(columns + max((start for start in self._starts if start is not None), default=0))

    def holding(self, positions: int) -> int:
        """The least length that holds so many positions."""
        return next((length for length in self.lengths if length >= positions), self.lengths[-1])
