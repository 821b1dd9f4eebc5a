"""Measures the cost of a round of every K with a policy that repeatedly runs all K in turn."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from .drafts_per_round import ObservedRound, RoundAhead

_TIMED = 2  # rounds of a K that are timed, after the first one, and those that still verify drafts for another K


class Sweep:
    """A policy that goes through ``counts`` in ascending order, again and again, while ``rows`` texts run.

    All K of a cycle see the same texts at almost the same length and within a second, so that neither a growing text
    nor a busy moment of the machine distorts their ratios. The first cycle, which allocates memory and on a GPU
    captures graphs, is not counted.
    """

    def __init__(self, counts: Sequence[int], rows: int) -> None:
        """``counts`` must begin with 0."""
        self.counts, self.most = tuple(counts), max(counts)
        self._rows, self._at, self._timed = rows, 0, list[float]()
        self._is_first = True  # a round after another K reads less of its data from the processor's caches
        self._cycle: list[float] = []  # seconds of a round, by K
        self._cycles: list[list[float]] = []

    def choose(self, ahead: RoundAhead) -> int:
        """Return the K whose turn it is."""
        del ahead
        return self.counts[self._at]

    def reach(self, ahead: RoundAhead, k: int) -> int:
        """Return K: forced drafts would change what a round costs."""
        del ahead
        return k

    def learn(self, seen: ObservedRound) -> None:
        """Time a round of as many rows as are measured, and go on to the next K."""
        if len(seen.outcomes) != self._rows or seen.seconds is None:
            return
        if seen.k != self.counts[self._at] or seen.verified != seen.k:
            return
        if self._is_first:
            self._is_first = False
            return
        self._timed.append(seen.seconds)
        if len(self._timed) < _TIMED:
            return
        self._cycle.append(min(self._timed))
        self._timed, self._at, self._is_first = [], (self._at + 1) % len(self.counts), True
        if self._at == 0:
            self._cycles.append(self._cycle)
            self._cycle = []

    @property
    def cycles(self) -> int:
        """The number of cycles that count."""
        return max(len(self._cycles) - 1, 0)

    @property
    def costs(self) -> tuple[float, ...]:
        """The cost of a round by ``counts``, in rounds of K = 0: the medians over all cycles that count.

        Empty if there is none.
        """
        ratios = ([each / cycle[0] for each in cycle] for cycle in self._cycles[1:])
        return tuple(statistics.median(of_k) for of_k in zip(*ratios, strict=True))
