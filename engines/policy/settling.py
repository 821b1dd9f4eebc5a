"""Decides when rounds are representative after a change between drafts and none.

On some processors, the first rounds without drafts are slower after rounds with drafts: 6.3 ms on a Xeon for SmolLM2,
4.6 ms after 0.2 s. Rounds with drafts are a few percent faster at first. docs/decisions/drafts-that-pay.md
"""

from __future__ import annotations

_SECONDS, _ROUNDS = 0.2, 40  # whichever pass first: a small model settles in less time


class Settling:
    """The rounds since a change; they have settled when many, or long ones, have passed."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start again: the next round is the first one after a change."""
        self._seconds, self._rounds = 0.0, 0

    def add(self, seconds: float) -> None:
        """Count a round of this duration."""
        self._seconds += seconds
        self._rounds += 1

    @property
    def has_ended(self) -> bool:
        """Return True if the rounds that were counted suffice."""
        return self._seconds >= _SECONDS or self._rounds >= _ROUNDS
