"""Detects drafters that do not match their target: almost no drafts are accepted.

A head with random weights has about one in a thousand first drafts accepted; a head that was trained for its target, a
third or more. Texts sampled at a high temperature are not counted, because they are unpredictable.
"""

from __future__ import annotations

import logging
import weakref

MIN_DRAFTS, MIN_RATE = 48, 0.04  # verified first drafts needed for a verdict, and the minimum acceptance rate
_LOG = logging.getLogger("peagle.policy")


class MisfitWatch:
    """Counts the first drafts of all texts, and logs one warning if almost none are accepted.

    ``drafter`` is the name of the drafter in the engine.
    """

    def __init__(self, drafter: str = "") -> None:
        self._named = f"the drafter {drafter}" if drafter else "the drafter"
        self.drafts = self.accepted = 0
        self.warning = ""

    def add(self, drafted: int, accepted: int) -> None:
        """Count one round of one text."""
        if not drafted:
            return
        self.drafts += 1
        self.accepted += accepted > 0
        if self.drafts < MIN_DRAFTS:
            return
        if self.accepted >= MIN_RATE * self.drafts:
            self.warning = ""
        elif not self.warning:
            self.warning = (
                f"only {self.accepted} of {self.drafts} first drafts were accepted: {self._named} does not match "
                f"this target or its precision. The output is correct, but drafts give no speedup. Build the engine "
                "with the head that was trained for this target, or with --draft none"
            )
            _LOG.warning("%s", self.warning)


class Misfits:
    """The watches of an engine's drafters, by their names."""

    def __init__(self) -> None:
        self._watches: dict[str, MisfitWatch] = {}
        self._gone: weakref.WeakSet[object] = weakref.WeakSet()

    def of(self, name: str, drafter: object = None) -> MisfitWatch:
        """Return the watch of a ``drafter`` in memory (None: the backend's own); it is dropped with the drafter."""
        return MisfitWatch(name) if drafter in self._gone else self._watches.setdefault(name, MisfitWatch(name))

    def forget(self, name: str, drafter: object = None) -> None:
        """Forget a drafter that was unloaded.

        Requests that still use it do not count for a later drafter of the same name.
        """
        if drafter is not None:
            self._gone.add(drafter)
        self._watches.pop(name, None)

    @property
    def names(self) -> frozenset[str]:
        """The names of the drafters that do not match their target."""
        return frozenset(name for name, each in [*self._watches.items()] if each.warning)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings about drafters, in the order in which they were first used."""
        return tuple(each.warning for each in [*self._watches.values()] if each.warning)
