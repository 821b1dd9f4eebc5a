"""Statistics of repeated measurements: quartiles and the sign test."""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

MIN_PAIRS = 6  # with fewer, the p-value of the sign test is above 0.05 even if all are on one side


@dataclass(frozen=True)
class Spread:
    """A median and its quartiles."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Compute the median and quartiles of one or more values."""
        low, median, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3
        return cls(low, median, high)


@dataclass(frozen=True)
class PairedRatios:
    """Ratios of two measurements that were taken in the same turn, or the medians of groups of such ratios.

    ``wins`` and ``losses`` count the ratios above and below 1, and ``p`` is the probability of a difference between
    them at least as large if both were equally likely: the two-sided sign test.
    """

    ratio: Spread
    wins: int
    losses: int
    p: float

    @classmethod
    def of(
        cls, values: Sequence[float], others: Sequence[float], groups: Sequence[Hashable] | None = None
    ) -> PairedRatios:
        """Compare two lists of the same turns, in the same order.

        Turns of one of the ``groups`` count once, with the median of their ratios: repeats are no independent samples.
        """
        by_group: dict[Hashable, list[float]] = {}
        for value, other, group in zip(values, others, groups or range(len(values)), strict=True):
            by_group.setdefault(group, []).append(value / other)
        ratios = [statistics.median(each) for each in by_group.values()]
        wins, losses = sum(ratio > 1 for ratio in ratios), sum(ratio < 1 for ratio in ratios)
        return cls(Spread.of(ratios), wins, losses, sign_test(wins, losses))


def sign_test(wins: int, losses: int) -> float:
    """Return the two-sided p-value of ``wins`` and ``losses`` if each were as likely as the other; ties do not count.

    1 if there is neither.
    """
    count, fewer = wins + losses, min(wins, losses)
    ways = tail = 1  # of choosing k turns of all, exactly: no count is too large
    for k in range(fewer):
        ways = ways * (count - k) // (k + 1)
        tail += ways
    return float(min(1.0, 2 * tail / 2**count))
