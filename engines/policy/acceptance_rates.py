"""How often drafts are accepted, by number; of one text, and of all.

Both forget: a text changes from prose to code, and users from one subject to another.
"""

from __future__ import annotations

from collections.abc import Sequence

from .prior import Prior

_MEMORY = 512.0  # rounds, of all texts
_TEXT_MEMORY = 32.0  # rounds, of one text
_TEXT_ROUNDS = 6.0  # that what is known of all texts counts for in one

_LEAST = 1e-4  # a rate, that odds can be told of


class AcceptanceRates:
    """How often the draft of each number is accepted, of rounds that verified it; forgets over ``memory`` rounds."""

    def __init__(self, most: int, memory: float) -> None:
        self._kept = 1 - 1 / memory
        self._tried, self._passed = [0.0] * most, [0.0] * most

    def add(self, drafted: int, accepted: Sequence[int]) -> None:
        """Count one round of one text, with drafts: the numbers, from 0, of those that were ``accepted``.

        What is known of drafts that it had not is forgotten too: those that it had say more of them by now.
        """
        for number in range(len(self._tried)):
            self._tried[number] = self._kept * self._tried[number] + (number < drafted)
            self._passed[number] *= self._kept
        for number in accepted:
            self._passed[number] += 1

    def rate(self, number: int, assumed: float, rounds: float) -> float:
        """The rate of a draft, where ``assumed`` counts as so many rounds."""
        return (self._passed[number] + rounds * assumed) / (self._tried[number] + rounds)


def rates_of_all(seen: AcceptanceRates, prior: Prior) -> list[float]:
    """The rate of every draft over all texts, beginning with what was known before."""
    return _rates(seen, prior.rates, prior.rounds)


def rates_of_text(seen: AcceptanceRates, of_all: Sequence[float]) -> list[float]:
    """The rate of every draft in one text, beginning with what is known of all."""
    return _rates(seen, of_all, _TEXT_ROUNDS)


def _rates(seen: AcceptanceRates, before: Sequence[float], rounds: float) -> list[float]:
    """What was ``seen``, where what was known ``before`` counts as so many rounds.

    Where drafts of one number are accepted more often than was known, it is taken to be so of the next.
    """
    rates: list[float] = []
    more = 1.0  # the odds of drafts against what was known, of the number before
    for number, known in enumerate(before):
        odds = more * _odds(known)
        rates.append(seen.rate(number, odds / (1 + odds), rounds))
        more = _odds(rates[-1]) / _odds(known)
    return rates


def new_rates(most: int, *, of_text: bool) -> AcceptanceRates:
    """Nothing seen yet, of one text or of all."""
    return AcceptanceRates(most, _TEXT_MEMORY if of_text else _MEMORY)


def _odds(rate: float) -> float:
    kept = min(max(rate, _LEAST), 1 - _LEAST)
    return kept / (1 - kept)
