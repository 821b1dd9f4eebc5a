"""The strategies by name, and what one is: the order of a round's steps. Backends know none of them."""

from __future__ import annotations

from typing import Protocol

from ..backends.base import Lanes
from .parallel import ParallelDrafting
from .plain import PlainDecoding


class Strategy(Protocol):
    """A way to decode, without state of its own: what a request has reached lies in the lanes.

    ``enqueues_only`` says that a round never waits, so a backend may record it once for every K and replay it. A
    strategy that drafts on the host reads what was emitted first, and says no.
    """

    @property
    def enqueues_only(self) -> bool:
        """Whether no step of a round waits."""
        ...

    def prompt(self, lanes: Lanes, k: int) -> None:
        """Run a piece of a prompt, which is the window of ``lanes``."""
        ...

    def round(self, lanes: Lanes, k: int) -> None:
        """Run one round with ``k`` drafts: verify those there are, leave the windows for the next round."""
        ...


STRATEGIES: dict[str, Strategy] = {"plain": PlainDecoding(), "parallel": ParallelDrafting()}


def register(name: str, strategy: Strategy) -> None:
    """Make a strategy available by name."""
    STRATEGIES[name] = strategy
