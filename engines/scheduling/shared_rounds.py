"""Rounds that requests of several draft methods share: one pass of the target for all of them.

A request that drafts nothing takes part in any round, as a row without drafts. Drafts that were made on the host are
put into the windows of their rows before a round of the drafter, which drafts for the other rows. Two methods that make
rounds of their own do not share them: who comes second waits until the first has ended, and who comes after waits
behind.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..draft_methods import PLAIN, DraftMethod, Strategy
from ..draft_methods.lanes import Lanes
from ..running.request import Request
from .host_rounds import HostDrafting


class SharedRounds:
    """The strategies of one scheduler, and that of a round of all requests in ``slots``, now and later."""

    def __init__(self, slots: Sequence[Request | None]) -> None:
        self._slots, self._on_host = slots, HostDrafting(slots)
        self._mixed: dict[str, MixedDrafting] = {}

    def of(self, method: DraftMethod) -> Strategy:
        """Return the strategy of a method over these slots, always the same one."""
        return method.strategy or self._on_host

    def may_join(self, method: DraftMethod) -> bool:
        """Whether a request of that method fits into a round with those that run."""
        return not _makes_rounds(method) or self._drafting() in (None, method)

    def of_those_that_run(self) -> Strategy:
        """Return the strategy of a round in which all of them take part."""
        drafting, on_host = self._drafting(), any(each and each.method.is_on_host for each in self._slots)
        if not on_host:
            return self.of(drafting or PLAIN)
        if drafting is None:
            return self._on_host
        if drafting.name not in self._mixed:
            self._mixed[drafting.name] = MixedDrafting(self._on_host, self.of(drafting))
        return self._mixed[drafting.name]

    def _drafting(self) -> DraftMethod | None:
        """The method that drafts in rounds of its own, of those that run."""
        return next((each.method for each in self._slots if each and _makes_rounds(each.method)), None)


def _makes_rounds(method: DraftMethod) -> bool:
    return method.drafts and not method.is_on_host


class MixedDrafting:
    """Rounds in which some rows verify what the host proposed for them, and the others what a drafter drafted."""

    enqueues_only = False

    def __init__(self, on_host: HostDrafting, drafter: Strategy) -> None:
        self._on_host, self._drafter = on_host, drafter

    def prompt(self, lanes: Lanes, k: int) -> None:
        """Run a piece of a prompt as the drafter's strategy does."""
        self._drafter.prompt(lanes, k)

    def round(self, lanes: Lanes, k: int) -> None:
        """Put the host's drafts into their rows; the drafter's round overwrites none of them before it is verified."""
        lanes.propose(self._on_host.proposals(k))
        self._drafter.round(lanes, k)
