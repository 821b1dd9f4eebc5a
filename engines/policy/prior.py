"""What a policy takes to be so before it has seen a round: what the build measured, else a guess that fits its K.

Both are for rounds of one text. What is seen counts beside it, and in time alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

_FALL = 0.6  # of the first drafts so many are accepted, and of each number so many of those before it
_DRAFTING = 0.1  # what a drafter's pass costs, in rounds without
_COLUMN, _MOST_COLUMN = 0.06, 0.15  # what a column of the target costs, where no K is known to be the best, and most
_GUESSED = 10.0, 0.5  # rounds of drafts, and ratios of rounds' costs, that a guess counts for
_MEASURED = 40.0, 10.0
_LEAST_RATE = 0.002


@dataclass(frozen=True)
class Prior:
    """How often each draft is accepted, and what a round costs by K = 0, 1, ..., in rounds of K = 0.

    They count for so many ``rounds`` of drafts, and ``ratios`` of the cost of each K to that of none.
    """

    rates: tuple[float, ...]
    costs: tuple[float, ...]
    rounds: float
    ratios: float

    @property
    def is_measured(self) -> bool:
        """Whether it is more than a guess."""
        return self.rounds > _GUESSED[0]

    @property
    def best(self) -> int:
        """The K of most tokens a second."""
        values = [tokens / cost for tokens, cost in zip(tokens_by_k(self.rates), self.costs, strict=True)]
        return values.index(max(values))


def guessed(best: int, most: int) -> Prior:
    """A guess for K up to ``most``: drafts are accepted as often as those of a usual head.

    Columns cost what makes one draft more than ``best`` too many, as far as any machine is so; 0 says nothing of them.
    """
    rates = [_FALL ** (number + 1) for number in range(most)]
    column = _COLUMN
    if best:
        last, tokens = rates[best - 1], tokens_by_k(rates)[best]
        column = min(last * (1 + _DRAFTING) / (tokens - last * best), _MOST_COLUMN)
    return Prior(tuple(rates), (1.0, *(1 + _DRAFTING + column * k for k in range(1, most + 1))), *_GUESSED)


def measured(tokens: Sequence[float], costs: Sequence[float], most: int) -> Prior:
    """What was measured of K = 0, 1, ...: ``tokens`` of a round and its cost. Further K, up to ``most``, go on so.

    What cannot be is noise: no draft is accepted more often than one before it, and more drafts never cost less.
    """
    rates = [-each for each in rising(less - more for less, more in pairwise(tokens))]
    rates = [min(max(each, _LEAST_RATE), 1.0) for each in rates]
    costs = rising(costs)
    while len(rates) < most:
        rates.append(rates[-1] * _FALL if rates else _FALL)
        costs.append(costs[-1] + (costs[-1] - costs[-2] if len(costs) > 1 else _COLUMN * costs[-1]))
    return Prior(tuple(rates[:most]), tuple(cost / costs[0] for cost in costs[: most + 1]), *_MEASURED)


def tokens_by_k(rates: Sequence[float]) -> list[float]:
    """Mean tokens of a round by K = 0, 1, ...: the target's own, and for each draft the chance that it is accepted."""
    return [1.0, *(1.0 + brought for brought in accumulate(rates))]


def rising(values: Iterable[float]) -> list[float]:
    """The nearest numbers that never fall, by least squares: neighbours that do are one block, with their mean."""
    blocks: list[tuple[float, int]] = []  # sum, how many
    for value in values:
        total, count = value, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / count:
            before, many = blocks.pop()
            total, count = total + before, count + many
        blocks.append((total, count))
    return [total / count for total, count in blocks for _ in range(count)]
