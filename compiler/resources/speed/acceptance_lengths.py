"""Acceptance lengths: the mean tokens of a round by its number of drafts, from a few known ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from ....engines.policy.prior import tokens_by_k

_HALVINGS = 60


@dataclass(frozen=True)
class AcceptanceLengths:
    """Known tokens per round by number of drafts, ascending, and where they come from.

    Between known numbers and beyond them, each draft is accepted a constant factor as often as the one before it, which
    is how published rates fall.
    """

    known: Mapping[int, float]
    source: str

    def tokens(self, k: int) -> float:
        """Return the tokens of a round of ``k`` drafts: 1 without drafts."""
        return tokens_by_k(self.rates(k))[k]

    def rates(self, max_drafts: int) -> list[float]:
        """Return the acceptance rates of drafts 1 to ``max_drafts``: they sum to the known lengths."""
        rates: list[float] = []
        factor, last = 0.0, 1.0
        for (fewer, less), (k, tokens) in pairwise([(0, 1.0), *self.known.items()]):
            count, sum_of_rates = k - fewer, tokens - less
            factor = _factor(last, count, sum_of_rates)
            # A longer text than the drafts before can explain is spread evenly.
            even = sum_of_rates / count
            rates += [last * factor**i if factor < 1 else even for i in range(1, count + 1)]
            last = rates[-1]
        rates += [last * factor**i for i in range(1, max_drafts - len(rates) + 1)]
        return rates[:max_drafts]


def _factor(last: float, count: int, wanted: float) -> float:
    """Return f in 0..1 with ``last * (f + f^2 + ... + f^count) == wanted``; 1 if even that is too little."""
    low, high = 0.0, 1.0
    if last * count <= wanted:
        return 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if last * sum(middle**i for i in range(1, count + 1)) < wanted:
            low = middle
        else:
            high = middle
    return (low + high) / 2
