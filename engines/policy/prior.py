"""Initial assumptions of a policy, before it has seen a round: the build's measurements, or a guess based on its K.

Both apply to rounds of one text. Observations are added to them and eventually outweigh them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from types import MappingProxyType

_ACCEPTANCE_DECAY = 0.6  # acceptance rate of the first draft, and the ratio between the rates of consecutive drafts
_DRAFTING = 0.1  # cost of a drafter pass, in rounds without drafts
_COLUMN, _MAX_COLUMN = 0.06, 0.15  # cost of a target column if the best K is unknown, and its maximum
_GUESSED = 10.0, 0.5  # weight of a guess, in rounds of drafts and in cost ratios
_MEASURED = 40.0, 10.0
_MIN_RATE = 0.002


@dataclass(frozen=True)
class Prior:
    """Acceptance rates of drafts by number, and round costs by K = 0, 1, ..., in rounds of K = 0.

    ``rounds`` is the weight of the rates, in rounds with drafts; ``ratios`` is the weight of the cost ratio of each K
    to 0. ``batches`` are the costs of rounds with several rows, by their number, in rounds of K = 0 with as many rows.
    """

    rates: tuple[float, ...]
    costs: tuple[float, ...]
    rounds: float
    ratios: float
    batches: Mapping[int, tuple[float, ...]] = field(default_factory=dict)

    @property
    def is_measured(self) -> bool:
        """Return True if the build measured these values."""
        return self.rounds > _GUESSED[0]

    @property
    def best(self) -> int:
        """The K with the most tokens per second of one text."""
        values = [tokens / cost for tokens, cost in zip(tokens_by_k(self.rates), self.costs, strict=True)]
        return values.index(max(values))

    def knows(self, rows: int) -> bool:
        """Return True if rounds of so many rows were measured, or of fewer and of more."""
        return self.is_measured and rows <= max(self.batches, default=1)

    def costs_of(self, rows: int) -> list[float]:
        """Return the costs of rounds with so many rows.

        Costs between two measured numbers of rows are interpolated. Beyond the largest, the extra cost of drafts is
        assumed to grow with the rows, which is an upper bound: a drafter reads its weights once for all rows.
        """
        known = {1: self.costs, **self.batches}
        below = max(each for each in known if each <= rows)
        above = min((each for each in known if each >= rows), default=None)
        if above is None:
            return [1 + rows / below * (cost - 1) for cost in known[below]]
        share = (rows - below) / max(above - below, 1)
        return [less + share * (more - less) for less, more in zip(known[below], known[above], strict=True)]


def guessed(best: int, max_drafts: int) -> Prior:
    """Return a guess for K up to ``max_drafts``, with the acceptance rates of a typical head.

    Column costs are chosen so that ``best`` is the best K, within realistic limits; 0 means that it is unknown.
    """
    rates = [_ACCEPTANCE_DECAY ** (number + 1) for number in range(max_drafts)]
    column = _COLUMN
    if best:
        last, tokens = rates[best - 1], tokens_by_k(rates)[best]
        column = min(last * (1 + _DRAFTING) / (tokens - last * best), _MAX_COLUMN)
    return Prior(tuple(rates), (1.0, *(1 + _DRAFTING + column * k for k in range(1, max_drafts + 1))), *_GUESSED)


def measured(
    tokens: Sequence[float],
    costs: Sequence[float],
    max_drafts: int,
    batches: Mapping[int, Sequence[float]] = MappingProxyType({}),
) -> Prior:
    """Return the prior from measurements for K = 0, 1, ...: ``tokens`` and cost of a round. Larger K are extrapolated.

    ``batches`` are costs of rounds with several rows, by their number. Impossible values are noise and are smoothed:
    no draft is accepted more often than the one before it, and more drafts never cost less.
    """
    rates = [-each for each in isotonic(less - more for less, more in pairwise(tokens))]
    rates = [min(max(each, _MIN_RATE), 1.0) for each in rates]
    while len(rates) < max_drafts:
        rates.append(rates[-1] * _ACCEPTANCE_DECAY if rates else _ACCEPTANCE_DECAY)
    several = {rows: filled_costs(each, max_drafts) for rows, each in batches.items()}
    return Prior(tuple(rates[:max_drafts]), filled_costs(costs, max_drafts), *_MEASURED, several)


def filled_costs(costs: Sequence[float], max_drafts: int) -> tuple[float, ...]:
    """Return the costs of K = 0 .. ``max_drafts`` relative to K = 0, not decreasing, the missing ones extrapolated."""
    known = isotonic(costs)
    while len(known) <= max_drafts:
        known.append(known[-1] + (known[-1] - known[-2] if len(known) > 1 else _COLUMN * known[-1]))
    return tuple(cost / known[0] for cost in known[: max_drafts + 1])


def tokens_by_k(rates: Sequence[float]) -> list[float]:
    """Return mean tokens per round for K = 0, 1, ...: one plus the acceptance probability of each draft."""
    return [1.0, *(1.0 + gained for gained in accumulate(rates))]


def isotonic(values: Iterable[float]) -> list[float]:
    """Return the nearest non-decreasing numbers in least squares; decreasing neighbours are replaced by their mean."""
    blocks: list[tuple[float, int]] = []  # sum, count
    for value in values:
        total, count = value, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / count:
            before, many = blocks.pop()
            total, count = total + before, count + many
        blocks.append((total, count))
    return [total / count for total, count in blocks for _ in range(count)]
