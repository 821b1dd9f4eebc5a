"""Policies of K, and the fixed one: the scheduler asks before each round how many drafts it verifies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

AUTO: Literal["auto"] = "auto"
DraftsAsked = int | Literal["auto"]  # as a caller says K: so many, or as many as pay


@dataclass(frozen=True)
class RoundRow:
    """One text in a round, known by identity alone, and the name of the method that drafts for it.

    ``forced`` tokens are what its form wants next, which no drafter is asked for; of those ``trust`` is how many are
    accepted where they are verified.
    """

    text: object
    method: str
    forced: int = 0
    trust: float = 0.0


@dataclass(frozen=True)
class RoundAhead:
    """A round that is to be launched, as far as what it costs and brings depends on it.

    ``rows`` are the texts that the policy is asked for, ``busy`` counts all of the round, with those of other policies;
    these verify ``least`` drafts whatever is chosen. ``on_host`` says that tokens are chosen on the host.
    """

    rows: Sequence[RoundRow]
    busy: int
    least: int = 0
    on_host: bool = False


@dataclass(frozen=True)
class RoundSeen:
    """What became of one: K as it was chosen, and for every row how many drafts were verified and which were accepted.

    Drafts are numbered from 0 in the order in which a smaller K would keep them: of a chain the first ones are
    accepted, of a tree those of a path. What a form forced is none of them, nor what came behind it.
    ``seconds`` is how long the round took, None where that cannot be told from what ran beside it. ``widest`` is the
    most drafts that a row verified, with those that a form forced; None: no form did.
    """

    ahead: RoundAhead
    k: int
    outcomes: Sequence[tuple[int, Sequence[int]]]
    seconds: float | None
    widest: int | None = None

    @property
    def verified(self) -> int:
        """The most drafts that a row verified."""
        return max((drafted for drafted, _ in self.outcomes), default=0) if self.widest is None else self.widest


class Policy(Protocol):
    """Chooses K for each round. ``most`` bounds its answers; with 0 there is nothing to draft at all."""

    @property
    def most(self) -> int:
        """The largest K that it ever says."""
        ...

    def choose(self, ahead: RoundAhead) -> int:
        """K of this round, 0 included; the same until something is learnt."""
        ...

    def reach(self, ahead: RoundAhead, k: int) -> int:
        """How many drafts, ``k`` or more, a row of this round may verify where its form forces them."""
        ...

    def learn(self, seen: RoundSeen) -> None:
        """Take note of a round that has been read; on a GPU the next one has been chosen by then."""
        ...


@dataclass(frozen=True)
class Fixed:
    """A policy of one K for every round: that of the build, or of the call."""

    most: int

    def choose(self, ahead: RoundAhead) -> int:
        """Return that one K."""
        del ahead
        return self.most

    def reach(self, ahead: RoundAhead, k: int) -> int:
        """Return that K: who says one is given no other drafts, and with 0 none."""
        del ahead
        return k

    def learn(self, seen: RoundSeen) -> None:
        """Learn nothing."""


def learn_from(
    policy: Policy,
    ahead: RoundAhead,
    k: int,
    outcomes: Sequence[tuple[int, Sequence[int]] | None],
    seconds: float | None,
    widest: int,
) -> None:
    """Let a policy learn from the round that it chose ``k`` for; ``outcomes`` are by row, None where it was idle.

    The others are as ``RoundSeen`` has them.
    """
    there = [at for at, outcome in enumerate(outcomes) if outcome is not None]
    if len(there) < len(outcomes):
        ahead = replace(ahead, rows=[ahead.rows[at] for at in there])
    policy.learn(RoundSeen(ahead, k, [each for each in outcomes if each is not None], seconds, widest))
