"""Lanes that time the passes of a round, for backends whose calls return after the pass has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ...draft_methods.lanes import Emission, Lanes


class TimedLanes:
    """Wraps lanes and sums the seconds of the target and the drafter."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.verify_seconds = self.draft_seconds = 0.0

    def verify(self, k: int) -> None:
        """Run ``verify`` and count its time as the target's."""
        started = time.perf_counter()
        self.lanes.verify(k)
        self.verify_seconds += time.perf_counter() - started

    def draft(self, k: int) -> None:
        """Run ``draft`` and count its time as the drafter's."""
        self._drafting(lambda: self.lanes.draft(k))

    def draft_tree(self, k: int) -> None:
        """Run ``draft_tree`` and count its time as the drafter's."""
        self._drafting(lambda: self.lanes.draft_tree(k))

    def extend(self) -> None:
        """Run ``extend`` and count its time as the drafter's."""
        self._drafting(self.lanes.extend)

    def defer(self) -> None:
        """Run ``defer`` and count its time as the drafter's, which may read columns."""
        self._drafting(self.lanes.defer)

    def advance(self, k: int) -> None:
        """Run ``advance``."""
        self.lanes.advance(k)

    def emission(self) -> Emission:
        """Return the emission."""
        return self.lanes.emission()

    def propose(self, drafts: Sequence[Sequence[int] | None]) -> None:
        """Run ``propose``."""
        self.lanes.propose(drafts)

    def _drafting(self, step: Callable[[], None]) -> None:
        started = time.perf_counter()
        step()
        self.draft_seconds += time.perf_counter() - started
