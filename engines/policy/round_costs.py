"""Round costs by K, learned from consecutive rounds.

Only cost ratios are used, each the median of several: a round of one K against rounds of another directly before it.
Other programs on the machine and growing texts therefore do not distort the cost of a K.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence

import numpy as np

from .prior import isotonic
from .settling import Settling

_UNTIMED = 2  # first rounds of every K, which allocate memory and on a GPU capture graphs
_FRESH, _FAR = 3, 1.1  # first rounds without drafts after drafts, and by how much they must be faster than assumed
_MAX_RATIOS = 15  # ratios kept per pair of K
_NEAR = 9  # consecutive rounds that count as running at one pace
_HALF_WEIGHT_RATIOS = 30.0  # number of ratios after which assumptions have half their weight
_STEP = 4.0  # weight, in ratios, of assumptions about neighbours


class RoundCosts:
    """The cost of a round of every K, in rounds of K = 0.

    The ``assumed`` costs have the weight of ``ratios`` observed ratios of each K to 0, less the more were observed. A K
    that was never measured keeps its assumed ratio to its neighbours. More drafts never cost less: contradicting ratios
    are pooled. ``num_ratios`` is the number of observed ratios.

    Rounds without drafts are observed once they have settled (``Settling``). Before, they are slower than later ones,
    so the first few are observed only if they are nevertheless far faster than assumed. The first round that verifies
    drafts after rounds without is slower too, and not observed.
    """

    def __init__(self, assumed: Sequence[float], ratios: float) -> None:
        self._assumed = [math.log(each / assumed[0]) for each in assumed]
        self._ratios, self.num_ratios = ratios, 0
        self._fitted: list[float] | None = list(self._assumed)  # None after further ratios
        self._observed: dict[tuple[int, int], deque[float]] = {}  # (more, fewer drafts) -> log ratios
        self._recent: deque[tuple[int, float]] = deque(maxlen=_NEAR)
        self._alike = 0  # last rounds of the same K
        self._untimed: dict[int, int] = {}
        self._had_drafts = True  # whether the last round had
        self._settling, self._fresh = Settling(), list[float]()  # rounds without drafts since the last drafts

    def begin(self) -> None:
        """Do not compare later rounds with earlier ones, because other texts have other lengths."""
        self._recent.clear()
        self._alike = 0

    def add(self, k: int, seconds: float) -> None:
        """Record a round that verified and drafted ``k``."""
        had_drafts, self._had_drafts = self._had_drafts, k > 0
        self._untimed[k] = self._untimed.get(k, 0) + 1
        if self._untimed[k] <= _UNTIMED or seconds <= 0:
            return
        now = math.log(seconds)
        if k:
            self._settling.begin()
            self._fresh.clear()
            if not had_drafts:
                return
        elif not self._settling.has_ended:
            self._settling.add(seconds)
            self._add_fresh(now)
            return
        if self._recent and self._recent[-1][0] != k:
            self._alike = 0
        if self._alike < len(self._recent):  # some were of another K
            self._compare(k, now)
        self._alike += 1
        self._recent.append((k, now))

    def _add_fresh(self, now: float) -> None:
        """Record one of the first rounds without drafts after drafts."""
        self._fresh.append(now)
        if len(self._fresh) != _FRESH or not self._recent:
            return
        logs = self._logs()
        expected = statistics.median(then - logs[k] for k, then in self._recent)
        if statistics.median(self._fresh) < expected - math.log(_FAR):
            for each in self._fresh:
                self._compare(0, each)

    def _compare(self, k: int, now: float) -> None:
        others = {other for other, _ in self._recent if other != k}
        for other in others:
            ratio = now - statistics.median(then for each, then in self._recent if each == other)
            ratios = self._observed.setdefault((max(k, other), min(k, other)), deque(maxlen=_MAX_RATIOS))
            ratios.append(ratio if k > other else -ratio)
        if others:
            self.num_ratios += len(others)
            self._fitted = None

    def ratio(self, k: int) -> float:
        """Return the cost of a round of ``k``."""
        return math.exp(self._logs()[k])

    def cost_of(self, seconds: float) -> float | None:
        """Return the cost of a round of this duration relative to those directly before it; None if there are none."""
        if not self._recent or seconds <= 0:
            return None
        logs = self._logs()
        return math.exp(math.log(seconds) - statistics.median(then - logs[k] for k, then in self._recent))

    def shape(self) -> list[float]:
        """Return the cost of every K."""
        return [math.exp(each) for each in self._logs()]

    def _logs(self) -> list[float]:
        """Return the log cost of every K; fitted when it is needed, since a fit takes longer than the rest of a round's
        bookkeeping."""
        if self._fitted is None:
            logs = isotonic(self._solved().tolist())
            self._fitted = [each - logs[0] for each in logs]
        return self._fitted

    def _solved(self) -> np.ndarray:
        """Return the log costs that best fit all observed ratios, by least squares."""
        assumed, size = self._assumed, len(self._assumed)
        trusted = 1 / (1 + self.num_ratios / _HALF_WEIGHT_RATIOS)
        ratios = [(k, 0, assumed[k], self._ratios * trusted**2) for k in range(1, size)]
        ratios += [(k, k - 1, assumed[k] - assumed[k - 1], _STEP * trusted) for k in range(1, size)]
        ratios += [
            (*pair, statistics.median(observed), float(len(observed))) for pair, observed in self._observed.items()
        ]
        normal, right = np.zeros((size, size)), np.zeros(size)
        for more, fewer, ratio, weight in ratios:
            normal[more, more] += weight
            normal[fewer, fewer] += weight
            normal[more, fewer] -= weight
            normal[fewer, more] -= weight
            right[more] += weight * ratio
            right[fewer] -= weight * ratio
        logs = np.zeros(size)
        logs[1:] = np.linalg.solve(normal[1:, 1:], right[1:])  # rounds without drafts cost 1 by definition
        return logs
