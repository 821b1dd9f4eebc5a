"""The strategies by name, and what one is: the order of a round's steps. Backends know none of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..backends.base import Lanes
from ..running.request import Request
from .autoregressive import AutoregressiveDrafting
from .ngram import NAME, NgramDrafting
from .parallel import ParallelDrafting
from .plain import PlainDecoding
from .tree import TreeDrafting


class Strategy(Protocol):
    """A way to decode. What a request has reached lies in the lanes.

    ``enqueues_only`` says that a round never waits, so a backend may record it once for every K and replay it. A
    strategy that drafts on the host says no, and has every token of the last round when it is asked for the next.
    """

    @property
    def enqueues_only(self) -> bool:
        """Whether no step of a round waits."""
        ...

    def over(self, slots: Sequence[Request | None]) -> Strategy:
        """The strategy for one run, in which ``slots`` hold these requests, now and later; mostly itself."""
        ...

    def prompt(self, lanes: Lanes, k: int) -> None:
        """Run a piece of a prompt, which is the window of ``lanes``."""
        ...

    def round(self, lanes: Lanes, k: int) -> None:
        """Run one round with ``k`` drafts: verify those there are, leave the windows for the next round."""
        ...


STRATEGIES: dict[str, Strategy] = {
    "plain": PlainDecoding(),
    "parallel": ParallelDrafting(),
    "tree": TreeDrafting(),
    "autoregressive": AutoregressiveDrafting(),
    NAME: NgramDrafting(),
}


def register(name: str, strategy: Strategy) -> None:
    """Make a strategy available by name."""
    STRATEGIES[name] = strategy
