"""Policies of K, and the fixed one: the scheduler asks before each round how many drafts it verifies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Policy(Protocol):
    """Chooses K for each round. ``most`` bounds its answers; with 0 there is nothing to draft at all."""

    @property
    def most(self) -> int:
        """The largest K that it ever says."""
        ...

    def choose(self) -> int:
        """K of the next round, 0 included."""
        ...


@dataclass(frozen=True)
class Fixed:
    """A policy of one K for every round: that of the build, or of the call."""

    most: int

    def choose(self) -> int:
        """Return that one K."""
        return self.most
