"""Rounds shared by requests with different draft methods: one target pass for all of them.

A request without drafts takes part in any round, as a row without drafts. Host drafts are written into the windows of
their rows before a round of the drafter, which drafts for the other rows. Two methods with different device rounds
cannot share a round: requests of the second method wait until those of the first have ended, and later requests wait
behind them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..draft_methods import PLAIN, DraftMethod, Strategy
from ..draft_methods.lanes import Lanes
from ..running.request import Request
from .host_rounds import HostDrafting


class SharedRounds:
    """The strategies of one scheduler, by draft method and for mixed rounds of the requests in ``slots``."""

    def __init__(self, slots: Sequence[Request | None]) -> None:
        self._slots, self._on_host = slots, HostDrafting(slots)
        self._mixed: dict[str, MixedDrafting] = {}
        self._running: Strategy | None = None  # of the requests in the slots; None: they have changed
        self.chooses_on_host = False  # whether the host chooses the tokens of one of them

    def of(self, method: DraftMethod) -> Strategy:
        """Return the strategy of a method over these slots, always the same object."""
        return method.strategy or self._on_host

    def may_join(self, method: DraftMethod, coming: Iterable[DraftMethod]) -> bool:
        """Return True if a request with this method can share rounds with the running ones and those ``coming``."""
        others = {self._drafting(), *filter(_makes_rounds, coming)}
        return not _makes_rounds(method) or others <= {None, method}

    def slots_changed(self) -> None:
        """Note that requests have ended or begun."""
        self._running = None
        self._on_host.slots_changed()
        self.chooses_on_host = any(each is not None and each.choice is not None for each in self._slots)

    def running_strategy(self) -> Strategy:
        """Return the strategy of a round for all running requests."""
        if self._running is None:
            self._running = self._strategy()
        return self._running

    def _strategy(self) -> Strategy:
        drafting, on_host = self._drafting(), any(each and each.method.is_on_host for each in self._slots)
        if not on_host:
            return self.of(drafting or PLAIN)
        if drafting is None:
            return self._on_host
        if drafting.name not in self._mixed:
            self._mixed[drafting.name] = MixedDrafting(self._on_host, self.of(drafting))
        return self._mixed[drafting.name]

    def _drafting(self) -> DraftMethod | None:
        """The running method with rounds of its own, if any."""
        return next((each.method for each in self._slots if each and _makes_rounds(each.method)), None)


def _makes_rounds(method: DraftMethod) -> bool:
    return method.drafts and not method.is_on_host


class MixedDrafting:
    """Rounds in which some rows verify host drafts, and the other rows verify the drafter's drafts."""

    enqueues_only = False

    def __init__(self, on_host: HostDrafting, drafter: Strategy) -> None:
        self._on_host, self._drafter = on_host, drafter

    def prompt(self, lanes: Lanes, k: int) -> None:
        """Run a prompt chunk with the drafter's strategy."""
        self._drafter.prompt(lanes, k)

    def round(self, lanes: Lanes, k: int) -> None:
        """Write the host's drafts into their rows.

        The drafter's round does not overwrite them before they are verified.
        """
        lanes.propose(self._on_host.proposals(k))
        self._drafter.round(lanes, k)
