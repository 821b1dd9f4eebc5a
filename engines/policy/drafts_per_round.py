"""Interface of draft policies, and the fixed policy. The scheduler asks a policy for K before each round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Protocol

AUTO: Literal["auto"] = "auto"
_SHORT = 511  # prompts of up to so many tokens count as equally long; of longer ones, those within a factor of four
NumSpeculativeTokens = int | Literal["auto"]  # a caller's K: a number, or as many as pay off


@dataclass(frozen=True)
class RoundRow:
    """One text in a round, compared by identity, and the name of its draft method.

    ``forced`` is the number of tokens that its grammar forces next, for which no drafter is needed. ``trust`` is their
    acceptance rate when verified. ``prompt_tokens`` is the length of its prompt: many heads draft worse in long texts.
    """

    text: object
    method: str
    forced: int = 0
    trust: float = 0.0
    prompt_tokens: int = 0

    @property
    def alike(self) -> tuple[str, int]:
        """The draft method and the magnitude of the prompt, the same for texts that accept about as many drafts."""
        return self.method, max(self.prompt_tokens, _SHORT).bit_length() // 2


@dataclass(frozen=True)
class RoundAhead:
    """A round that is about to be launched, with everything that its cost and its tokens depend on.

    ``rows`` are the texts of this policy. ``busy`` counts all texts of the round, including those of other policies,
    which verify ``min_drafts`` drafts in any case. ``on_host`` says that tokens are chosen on the host. ``joining``
    counts the texts that will join soon, because their prompts are nearly read.
    """

    rows: Sequence[RoundRow]
    busy: int
    min_drafts: int = 0
    on_host: bool = False
    joining: int = 0

    @cached_property
    def texts(self) -> list[int]:
        """The identities of the texts."""
        return [id(row.text) for row in self.rows]


@dataclass(frozen=True)
class ObservedRound:
    """The result of a round: the chosen K, and for every row the number of verified drafts and the accepted ones.

    Drafts are numbered from 0 in the order in which a smaller K would keep them. In a chain, the accepted drafts are
    the first ones; in a tree, they form a path. Drafts forced by a grammar, and drafts after these, are not counted.

    ``seconds`` is the duration of the round, or None if concurrent work makes it unknown. ``widest`` is the maximum
    number of drafts that a row verified, forced ones included; None if none were forced.
    """

    ahead: RoundAhead
    k: int
    outcomes: Sequence[tuple[int, Sequence[int]]]
    seconds: float | None
    widest: int | None = None

    @property
    def verified(self) -> int:
        """Maximum number of drafts that a row verified."""
        return max((drafted for drafted, _ in self.outcomes), default=0) if self.widest is None else self.widest


def spaced_counts(max_drafts: int) -> tuple[int, ...]:
    """Return a few K up to ``max_drafts``: 0, the powers of two, and ``max_drafts``."""
    return tuple(sorted({0, max_drafts, *(1 << power for power in range(max_drafts.bit_length()))}))


class Policy(Protocol):
    """Chooses K for each round. ``max_drafts`` is the maximum; with 0, nothing can be drafted."""

    @property
    def max_drafts(self) -> int:
        """The largest K that the policy returns."""
        ...

    @property
    def counts(self) -> Sequence[int]:
        """Every K that the policy may return, in ascending order."""
        ...

    def choose(self, ahead: RoundAhead) -> int:
        """Return K of this round, possibly 0. The result is the same until the policy learns something."""
        ...

    def reach(self, ahead: RoundAhead, k: int) -> int:
        """Return how many drafts, at least ``k``, a row of this round may verify if its grammar forces them."""
        ...

    def learn(self, observed: ObservedRound) -> None:
        """Learn from a round that has been read; on a GPU, the next one has already been chosen."""
        ...


@dataclass(frozen=True)
class Fixed:
    """A policy with one K for every round, set by the build or by the call."""

    max_drafts: int

    @property
    def counts(self) -> tuple[int, ...]:
        """The only K."""
        return (self.max_drafts,)

    def choose(self, ahead: RoundAhead) -> int:
        """Return K."""
        del ahead
        return self.max_drafts

    def reach(self, ahead: RoundAhead, k: int) -> int:
        """Return K: a fixed K allows no additional drafts."""
        del ahead
        return k

    def learn(self, observed: ObservedRound) -> None:
        """Do nothing."""


def learn_from(
    policy: Policy,
    ahead: RoundAhead,
    k: int,
    outcomes: Sequence[tuple[int, Sequence[int]] | None],
    seconds: float | None,
    widest: int,
) -> None:
    """Report the round for which a policy chose ``k``; ``outcomes`` are by row, None for an idle row.

    The other arguments are those of ``ObservedRound``.
    """
    there = [at for at, outcome in enumerate(outcomes) if outcome is not None]
    if len(there) < len(outcomes):
        ahead = replace(ahead, rows=[ahead.rows[at] for at in there])
    policy.learn(ObservedRound(ahead, k, [each for each in outcomes if each is not None], seconds, widest))
