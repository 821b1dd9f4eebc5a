"""Lanes that say how long the passes of a round took, for a backend whose calls return when a pass has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ...draft_methods.lanes import Emission, Lanes


class TimedLanes:
    """Lanes as they are, and the seconds that the target and the drafter took since it was made."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.verify_seconds = self.draft_seconds = 0.0

    def verify(self, k: int) -> None:
        """Do so, and count the time as the target's."""
        began = time.perf_counter()
        self.lanes.verify(k)
        self.verify_seconds += time.perf_counter() - began

    def draft(self, k: int) -> None:
        """Do so, and count the time as the drafter's."""
        self._drafting(lambda: self.lanes.draft(k))

    def branch(self, k: int) -> None:
        """Do so, and count the time as the drafter's."""
        self._drafting(lambda: self.lanes.branch(k))

    def extend(self) -> None:
        """Do so, and count the time as the drafter's."""
        self._drafting(self.lanes.extend)

    def hold(self) -> None:
        """Do so, and count the time as the drafter's."""
        self._drafting(self.lanes.hold)

    def advance(self, k: int) -> None:
        """Do so."""
        self.lanes.advance(k)

    def emission(self) -> Emission:
        """Return what they emitted."""
        return self.lanes.emission()

    def propose(self, drafts: Sequence[Sequence[int] | None]) -> None:
        """Do so."""
        self.lanes.propose(drafts)

    def _drafting(self, step: Callable[[], None]) -> None:
        began = time.perf_counter()
        step()
        self.draft_seconds += time.perf_counter() - began
