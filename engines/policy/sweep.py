"""Measures rounds of every K, their costs and accepted drafts, with a policy that repeatedly runs all K in turn."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .drafts_per_round import ObservedRound, RoundAhead
from .settling import Settling

_TIMED = 2  # rounds of a K that are timed, after the first one, and those that still verify drafts for another K
_CERTAIN = 4  # cycles after which a K that is far behind is no longer measured
_BEHIND = 0.75  # of the most tokens per second: far behind


@dataclass(frozen=True)
class MeasuredK:
    """Rounds of one K: mean tokens of a text, the cost in rounds of K = 0, a median, and the seconds in every cycle."""

    tokens: float
    cost: float
    seconds: tuple[float, ...]

    @property
    def value(self) -> float:
        """Return the tokens per second relative to plain decoding."""
        return self.tokens / self.cost


def near_fastest(values: Mapping[int, float]) -> set[int]:
    """Return 0, and the K that are not far behind the fastest by these tokens per second."""
    return {k for k, value in values.items() if not k or value >= _BEHIND * max(values.values())}


class Sweep:
    """A policy that goes through ``counts`` in ascending order, again and again, while ``rows`` texts run.

    All K of a cycle see the same texts at almost the same length and within a second, so that neither a growing text
    nor a busy moment of the machine distorts their ratios. The first cycle, which allocates memory and on a GPU
    captures graphs, is not counted. A K far behind the fastest is left out after a few cycles, because its cost need
    not be known well.

    Every draft counts for all K that verify it: a smaller K keeps a prefix of the drafts.
    """

    def __init__(self, counts: Sequence[int], rows: int) -> None:
        """``counts`` must begin with 0."""
        self.counts, self.max_drafts = tuple(counts), max(counts)
        self._rows, self._at, self._timed = rows, 0, list[float]()
        self._is_untimed = True  # a round after another K reads less of its data from the processor's caches
        self._settling = Settling()  # after a change between drafts and none
        self._running = self.counts
        self._cycle: dict[int, float] = {}  # K -> seconds of a round
        self._cycles: list[dict[int, float]] = []
        self._tried, self._accepted = [0] * self.max_drafts, [0] * self.max_drafts  # drafts by number

    def choose(self, ahead: RoundAhead) -> int:
        """Return the K whose turn it is."""
        del ahead
        return self._running[self._at]

    def reach(self, ahead: RoundAhead, k: int) -> int:
        """Return K: forced drafts would change what a round costs."""
        del ahead
        return k

    def learn(self, observed: ObservedRound) -> None:
        """Time a round of as many rows as are measured, and go on to the next K."""
        for drafted, accepted in observed.outcomes:
            for number in range(min(drafted, self.max_drafts)):
                self._tried[number] += 1
                self._accepted[number] += number in accepted
        if len(observed.outcomes) != self._rows or observed.seconds is None:
            return
        if observed.k != self._running[self._at] or observed.verified != observed.k:
            return
        if self._is_untimed:
            self._settling.add(observed.seconds)
            self._is_untimed = self._at < 2 and not self._settling.has_ended
            return
        self._timed.append(observed.seconds)
        if len(self._timed) < _TIMED:
            return
        self._cycle[observed.k] = min(self._timed)
        self._timed, self._at, self._is_untimed = [], (self._at + 1) % len(self._running), True
        self._settling.begin()
        if self._at == 0:
            self._cycles.append(self._cycle)
            self._cycle = {}
            if self.cycles >= _CERTAIN:
                worth = near_fastest({k: each.value for k, each in self.measured.items()})
                self._running = tuple(k for k in self._running if k in worth)

    @property
    def cycles(self) -> int:
        """The number of cycles that count."""
        return max(len(self._cycles) - 1, 0)

    @property
    def measured(self) -> Mapping[int, MeasuredK]:
        """Measurements of every K; empty if no cycle counts."""
        return {k: self._measured(k) for k in self.counts} if self.cycles else {}

    def _measured(self, k: int) -> MeasuredK:
        cycles = [each for each in self._cycles[1:] if k in each]
        cost = statistics.median(each[k] / each[0] for each in cycles)
        rates = [won / max(tried, 1) for won, tried in zip(self._accepted[:k], self._tried, strict=False)]
        return MeasuredK(1 + sum(rates), cost, tuple(each[k] for each in cycles))
