"""Rounds that requests of several strategies share: one pass of the target for all of them.

A request that drafts nothing takes part in any round, as a row without drafts. Drafts that are looked up in the text
are put into the windows of their rows before a round of the drafter's strategy, which drafts for the other rows. Two
strategies that draft by passes of their own do not share a round: who comes second waits until the first has ended, and
who comes after waits behind.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..backends.base import Lanes
from ..running.request import Request
from .base import STRATEGIES, Strategy
from .ngram import NAME, NgramDrafting

_ROWS = ("plain", NAME)  # what needs no pass of its own


class SharedRounds:
    """The strategies of one scheduler, by name, and that of a round of all requests in ``slots``, now and later."""

    def __init__(self, slots: Sequence[Request | None]) -> None:
        self._slots = slots
        self._over: dict[str, Strategy] = {}
        self._mixed: dict[str, MixedDrafting] = {}

    def named(self, name: str) -> Strategy:
        """The strategy of that name over these slots, always the same one."""
        if name not in self._over:
            self._over[name] = STRATEGIES[name].over(self._slots)
        return self._over[name]

    @staticmethod
    def makes_passes(name: str) -> bool:
        """Whether that strategy drafts by passes of its own, which read the prompt too."""
        return name not in _ROWS

    def may_join(self, name: str) -> bool:
        """Whether a request of that strategy fits into a round with those that run."""
        return not self.makes_passes(name) or self._drafting() in (None, name)

    def of_those_that_run(self) -> Strategy:
        """The strategy of a round in which all of them take part."""
        drafting, looks_up = self._drafting(), any(each and each.strategy == NAME for each in self._slots)
        if drafting is None:
            return self.named(NAME if looks_up else "plain")
        if not looks_up:
            return self.named(drafting)
        if drafting not in self._mixed:
            looked_up = self.named(NAME)
            if not isinstance(looked_up, NgramDrafting):
                return self.named(drafting)  # somebody registered another: its rows go without drafts
            self._mixed[drafting] = MixedDrafting(looked_up, self.named(drafting))
        return self._mixed[drafting]

    def _drafting(self) -> str | None:
        """The strategy that makes passes to draft, of those that run."""
        return next((each.strategy for each in self._slots if each and self.makes_passes(each.strategy)), None)


class MixedDrafting:
    """Rounds in which some rows verify what was looked up for them, and the others what a drafter drafted."""

    enqueues_only = False

    def __init__(self, looked_up: NgramDrafting, drafter: Strategy) -> None:
        self._looked_up, self._drafter = looked_up, drafter

    def over(self, slots: Sequence[Request | None]) -> MixedDrafting:
        """Itself: it is made for the slots of its parts."""
        del slots
        return self

    def prompt(self, lanes: Lanes, k: int) -> None:
        """Run a piece of a prompt as the drafter's strategy does."""
        self._drafter.prompt(lanes, k)

    def round(self, lanes: Lanes, k: int) -> None:
        """Put what was looked up into its rows; the drafter's round overwrites none of it before it is verified."""
        lanes.propose(self._looked_up.proposals(k))
        self._drafter.round(lanes, k)
