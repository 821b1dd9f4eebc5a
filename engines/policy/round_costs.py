"""What a round costs by K, learnt from rounds that ran next to each other.

Only ratios count, each the median of a few: a round of one K against those of another right before it. So neither
another program on the machine nor a text that grows looks like a property of the K that it fell on.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence

import numpy as np

from .prior import rising

_UNTIMED = 2  # rounds of every K, which allocate, and on a GPU are captured
_KEPT = 15  # ratios of two K
_NEAR = 9  # rounds that ran at one pace
_FORGOTTEN = 30.0  # ratios after which what is assumed counts half
_STEP = 4.0  # ratios that what is assumed of neighbours counts for


class RoundCosts:
    """The cost of a round of every K, in rounds of none.

    What is ``assumed`` counts as so many ``ratios`` of each K to none, and fewer the more were seen. A K that never ran
    beside another is as far from its neighbours as assumed, wherever these are found to be. More drafts never cost
    less: where ratios say so, they are pooled.
    """

    def __init__(self, assumed: Sequence[float], ratios: float) -> None:
        self._assumed = [math.log(each / assumed[0]) for each in assumed]
        self._ratios, self._count = ratios, 0
        self._logs = list(self._assumed)
        self._seen: dict[tuple[int, int], deque[float]] = {}  # (more, fewer drafts) -> logarithms of ratios
        self._recent: deque[tuple[int, float]] = deque(maxlen=_NEAR)
        self._untimed: dict[int, int] = {}

    def begin(self) -> None:
        """Take no round from here on as next to one before: other texts are of other lengths."""
        self._recent.clear()

    def add(self, k: int, seconds: float) -> bool:
        """Note a round that verified and drafted ``k``; says whether a cost changed."""
        self._untimed[k] = self._untimed.get(k, 0) + 1
        if self._untimed[k] <= _UNTIMED or seconds <= 0:
            return False
        now = math.log(seconds)
        others = {other for other, _ in self._recent if other != k}
        for other in others:
            ratio = now - statistics.median(then for each, then in self._recent if each == other)
            kept = self._seen.setdefault((max(k, other), min(k, other)), deque(maxlen=_KEPT))
            kept.append(ratio if k > other else -ratio)
        if others:
            self._count += len(others)
            logs = rising(self._solved().tolist())
            self._logs = [each - logs[0] for each in logs]
        self._recent.append((k, now))
        return bool(others)

    def ratio(self, k: int) -> float:
        """What a round of ``k`` costs."""
        return math.exp(self._logs[k])

    def cost_of(self, seconds: float) -> float | None:
        """What a round of so many seconds cost, beside those right before it; None where there are none."""
        if not self._recent or seconds <= 0:
            return None
        return math.exp(math.log(seconds) - statistics.median(then - self._logs[k] for k, then in self._recent))

    def shape(self) -> list[float]:
        """The cost of every K."""
        return [math.exp(each) for each in self._logs]

    def _solved(self) -> np.ndarray:
        """The logarithms that fit all ratios best, each as often as it was seen: least squares."""
        assumed, size = self._assumed, len(self._assumed)
        trusted = 1 / (1 + self._count / _FORGOTTEN)
        ratios = [(k, 0, assumed[k], self._ratios * trusted**2) for k in range(1, size)]
        ratios += [(k, k - 1, assumed[k] - assumed[k - 1], _STEP * trusted) for k in range(1, size)]
        ratios += [(*pair, statistics.median(seen), float(len(seen))) for pair, seen in self._seen.items()]
        normal, right = np.zeros((size, size)), np.zeros(size)
        for more, fewer, ratio, weight in ratios:
            normal[more, more] += weight
            normal[fewer, fewer] += weight
            normal[more, fewer] -= weight
            normal[fewer, more] -= weight
            right[more] += weight * ratio
            right[fewer] -= weight * ratio
        logs = np.zeros(size)
        logs[1:] = np.linalg.solve(normal[1:, 1:], right[1:])  # rounds without drafts cost 1
        return logs
