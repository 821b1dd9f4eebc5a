"""Cache length that a pass reads: the smallest of a few lengths that covers all active rows.

A plan gets this length as a shape, which the host must know at launch, although results arrive late. For each row the
host therefore tracks an upper bound: the last known start of its window, plus the tokens that unread rounds may add.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from ...folder.records import Part


def lengths_of(parts: Iterable[Part], cache_length: int) -> tuple[int, ...]:
    """Return the lengths R that every profile covers: each four times the previous one, and finally the whole cache.

    Plans without this input read their whole caches for any R.
    """
    plans = [part.plan for part in parts if part.plan and part.reads_positions]
    sizes = [profile.positions for plan in plans for profile in plan.profiles]
    max_length = min([cache_length, *(each[-1] for each in sizes)])
    length = max([1, *(each[0] for each in sizes)]) if sizes else max_length
    lengths = []
    while 2 * length <= max_length:  # a length close to the whole cache would gain little
        lengths.append(length)
        length *= 4
    return (*lengths, max_length)


class Reach:
    """Tracks the window start of every slot."""

    def __init__(self, lengths: Sequence[int], slots: int) -> None:
        self.lengths = tuple(lengths)
        self._starts: list[int | None] = [None] * slots  # upper bounds; None for an idle row
        self._tenants = [0] * slots
        self._least = 0

    @contextmanager
    def at_least(self, positions: int) -> Iterator[None]:
        """Inside of the block, windows need at least so many positions."""
        self._least = positions
        try:
            yield
        finally:
            self._least = 0

    def place(self, slot: int, start: int | None) -> None:
        """Record that a slot's window begins at ``start``, or that the slot is idle (None)."""
        self._starts[slot] = start
        self._tenants[slot] += 1

    def launched(self, drafted: Sequence[int]) -> Callable[[Sequence[int]], None]:
        """Record a round that verifies ``drafted`` drafts per row. Call the returned function with its token counts."""
        max_emitted, tenants = [count + 1 for count in drafted], tuple(self._tenants)
        self._starts = [
            None if start is None else start + each for start, each in zip(self._starts, max_emitted, strict=True)
        ]

        def came(num_tokens: Sequence[int]) -> None:
            for slot, start in enumerate(self._starts):
                if start is not None and self._tenants[slot] == tenants[slot]:
                    self._starts[slot] = start - max_emitted[slot] + num_tokens[slot]

        return came

    def of_windows(self, columns: int) -> int:
        """Return the length that covers ``columns`` columns of every active window."""
        needed = columns + max((start for start in self._starts if start is not None), default=0)
        return self.holding(max(needed, self._least))

    def holding(self, positions: int) -> int:
        """Return the smallest length that covers ``positions`` positions."""
        return next((length for length in self.lengths if length >= positions), self.lengths[-1])
