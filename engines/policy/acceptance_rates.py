"""Acceptance rates of drafts by position, for one text, for those of similar length and for all texts.

All forget old rounds, because a text changes from prose to code, and users change the subject.
"""

from __future__ import annotations

from collections.abc import Sequence

from .prior import Prior

_MEMORY = 512.0  # rounds, for several texts
_TEXT_MEMORY = 32.0  # rounds, for one text
_ALIKE_ROUNDS = 16.0  # weight of the rates of all texts within those of similar length
_TEXT_ROUNDS = 16.0  # weight of the rates of all texts within one text
_MIN = 1e-4  # minimum rate, so that odds are finite


class AcceptanceRates:
    """The acceptance rate of the draft of each number, in rounds that verified it; forgets over ``memory`` rounds."""

    def __init__(self, max_drafts: int, memory: float) -> None:
        self._kept = 1 - 1 / memory
        self._tried, self._passed = [0.0] * max_drafts, [0.0] * max_drafts

    def add(self, drafted: int, accepted: Sequence[int]) -> None:
        """Count one round of one text with drafts; ``accepted`` are the numbers, from 0, of accepted drafts.

        Statistics of drafts that the round did not have decay too, because the other statistics then describe them
        better.
        """
        for number in range(len(self._tried)):
            self._tried[number] = self._kept * self._tried[number] + (number < drafted)
            self._passed[number] *= self._kept
        for number in accepted:
            self._passed[number] += 1

    def rate(self, number: int, assumed: float, rounds: float) -> float:
        """Return the rate of a draft, with ``assumed`` weighted as ``rounds`` rounds."""
        return (self._passed[number] + rounds * assumed) / (self._tried[number] + rounds)


def rates_of_all(observed: AcceptanceRates, prior: Prior) -> list[float]:
    """Return the rate of every draft over all texts, starting from the prior."""
    return _rates(observed, prior.rates, prior.rounds)


def rates_of_alike(observed: AcceptanceRates, of_all: Sequence[float]) -> list[float]:
    """Return the rate of every draft over texts of similar length, starting from the rates of all texts."""
    return _rates(observed, of_all, _ALIKE_ROUNDS)


def rates_of_text(observed: AcceptanceRates, of_all: Sequence[float]) -> list[float]:
    """Return the rate of every draft in one text, starting from the rates of all texts."""
    return _rates(observed, of_all, _TEXT_ROUNDS)


def _rates(observed: AcceptanceRates, before: Sequence[float], rounds: float) -> list[float]:
    """Return the observed rates, with the rates ``before`` weighted as ``rounds`` rounds.

    If drafts of one number are accepted more often than before, the same is assumed of the next number.
    """
    rates: list[float] = []
    more = 1.0  # odds ratio between observed and prior rates, for the previous number
    for number, known in enumerate(before):
        usual = _odds(known)
        odds = more * usual
        rate = observed.rate(number, odds / (1 + odds), rounds)
        rates.append(rate)
        more = _odds(rate) / usual
    return rates


def multiplied(rates: Sequence[float], odds: float) -> Sequence[float]:
    """Return the rates whose odds are ``odds`` times as high."""
    return rates if odds == 1 else [odds * rate / (1 + (odds - 1) * rate) for rate in rates]


def new_rates(max_drafts: int, *, of_text: bool) -> AcceptanceRates:
    """Return empty statistics, for one text or for several."""
    return AcceptanceRates(max_drafts, _TEXT_MEMORY if of_text else _MEMORY)


def _odds(rate: float) -> float:
    clamped = rate if _MIN <= rate <= 1 - _MIN else min(max(rate, _MIN), 1 - _MIN)
    return clamped / (1 - clamped)
