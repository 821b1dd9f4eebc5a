"""What a policy knows: how often drafts are accepted, by number, and what a round costs, by K.

Both forget: a text changes from prose to code, a machine has other work, and attention takes longer as a text grows.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from itertools import accumulate

# Of all texts together: what is assumed of first drafts before any was verified, and how many rounds that counts for.
_ASSUMED, _ASSUMED_ROUNDS = 0.6, 10.0
_MEMORY = 512.0  # rounds, of all texts
_TEXT_MEMORY = 32.0  # rounds, of one text
_TEXT_ROUNDS = 6.0  # that what is known of all texts counts for in one

_LEAST = 1e-4  # a rate, that odds can be told of

_UNTIMED = 2  # rounds of every K, which allocate, and on a GPU are captured
_PAIRS = 15  # kept of each K
_ASSUMED_PAIRS = 4.0  # that what is assumed counts for
_NEAR = 9  # rounds that ran at one pace


class AcceptanceRates:
    """How often the draft of each number is accepted, of rounds that verified it; forgets over ``memory`` rounds."""

    def __init__(self, most: int, memory: float) -> None:
        self._kept = 1 - 1 / memory
        self._tried, self._passed = [0.0] * most, [0.0] * most

    def add(self, drafted: int, accepted: Sequence[int]) -> None:
        """Count one round of one text: the numbers, from 0, of those that were ``accepted``."""
        for number in range(drafted):
            self._tried[number] = self._kept * self._tried[number] + 1
            self._passed[number] *= self._kept
        for number in accepted:
            self._passed[number] += 1

    def rate(self, number: int, assumed: float, rounds: float) -> float:
        """The rate of a draft, where ``assumed`` counts as so many rounds."""
        return (self._passed[number] + rounds * assumed) / (self._tried[number] + rounds)


def rates_of_all(seen: AcceptanceRates, most: int) -> list[float]:
    """The rate of every draft over all texts; one that was never verified is taken to fall off as those before it."""
    rates: list[float] = []
    before = 1.0
    for number in range(most):
        last = rates[-1] if rates else 1.0
        assumed = last * min(last / before, 1.0) if rates else _ASSUMED
        rates.append(seen.rate(number, assumed, _ASSUMED_ROUNDS))
        before = max(last, _LEAST)
    return rates


def rates_of_text(seen: AcceptanceRates, of_all: Sequence[float]) -> list[float]:
    """The rate of every draft in one text, beginning with what is known of all.

    A text whose drafts of one number are accepted more often than others' is taken to be so at the next.
    """
    rates: list[float] = []
    more = 1.0  # the odds of this text's drafts against those of all, of the number before
    for number, common in enumerate(of_all):
        odds = more * _odds(common)
        rates.append(seen.rate(number, odds / (1 + odds), _TEXT_ROUNDS))
        more = _odds(rates[-1]) / _odds(common)
    return rates


def new_rates(most: int, *, of_text: bool) -> AcceptanceRates:
    """Nothing seen yet, of one text or of all."""
    return AcceptanceRates(most, _TEXT_MEMORY if of_text else _MEMORY)


def tokens_by_k(rates: Sequence[float]) -> list[float]:
    """Mean tokens of a round by K = 0, 1, ...: the target's own, and for each draft the chance that it is accepted."""
    return [1.0, *(1.0 + brought for brought in accumulate(rates))]


class RoundCosts:
    """What a round costs by K, in a unit that all K share, learnt from rounds that ran next to each other.

    Only ratios are kept, each the median of pairs: a round of one K against those of other K right before it. So
    neither another program on the machine nor a text that grows looks like a property of the K that it fell on. As
    long as there are few pairs the shape that is ``assumed`` counts beside them; and more drafts never cost less, so
    where the medians say so they are pooled.
    """

    def __init__(self, assumed: Sequence[float]) -> None:
        self._assumed = [math.log(each) for each in assumed]
        self._logs = list(self._assumed)
        self._pairs: dict[int, deque[float]] = {}  # logarithms of ratios
        self._middles: dict[int, float] = {}  # the medians of pairs
        self._recent: deque[tuple[int, float]] = deque(maxlen=_NEAR)
        self._untimed: dict[int, int] = {}

    def begin(self) -> None:
        """Take no round from here on as next to one before: other texts are of other lengths."""
        self._recent.clear()

    def add(self, k: int, seconds: float) -> bool:
        """Note a round that verified and drafted ``k``; says whether a ratio changed."""
        self._untimed[k] = self._untimed.get(k, 0) + 1
        if self._untimed[k] <= _UNTIMED or seconds <= 0:
            return False
        now = math.log(seconds)
        others = [then - self._logs[other] for other, then in self._recent if other != k]
        if others:
            pairs = self._pairs.setdefault(k, deque(maxlen=_PAIRS))
            pairs.append(now - statistics.median(others))
            self._middles[k] = statistics.median(pairs)
            self._logs = self._pooled()
        self._recent.append((k, now))
        return bool(others)

    def ratio(self, k: int) -> float:
        """What a round of ``k`` costs."""
        return math.exp(self._logs[k])

    def shape(self) -> list[float]:
        """The ratio of every K."""
        return [math.exp(each) for each in self._logs]

    def _pooled(self) -> list[float]:
        """The logarithm of every K's ratio: neighbours that do not rise are one block, with their weighted mean."""
        blocks: list[tuple[float, float, int]] = []  # mean, weight, how many K
        for k in range(len(self._assumed)):
            pairs = len(self._pairs.get(k, ()))
            weight = _ASSUMED_PAIRS + pairs
            block = ((_ASSUMED_PAIRS * self._guess(k) + pairs * self._middles.get(k, 0.0)) / weight, weight, 1)
            while blocks and blocks[-1][0] > block[0]:
                mean, before, count = blocks.pop()
                total = before + block[1]
                block = ((mean * before + block[0] * block[1]) / total, total, count + block[2])
            blocks.append(block)
        return [mean for mean, _, count in blocks for _ in range(count)]

    def _guess(self, k: int) -> float:
        """What is assumed of this K, as far off as the nearest others on both sides were found to be."""
        total = weights = 0.0
        for near in (max, min):
            side = [each for each in self._middles if (each < k if near is max else each > k)]
            if side:
                other = near(side)
                weight = 1 / abs(other - k)
                total += weight * (self._middles[other] - self._assumed[other])
                weights += weight
        return self._assumed[k] + (total / weights if weights else 0.0)


def _odds(rate: float) -> float:
    kept = min(max(rate, _LEAST), 1 - _LEAST)
    return kept / (1 - kept)
