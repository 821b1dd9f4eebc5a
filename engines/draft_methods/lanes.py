"""Lanes, over which the rounds of a draft method are written, and the emission of a round. Backends implement both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class Emission(Protocol):
    """The result of a launched pass, possibly still pending: B rows, K + 1 columns."""

    @property
    def drafted(self) -> Sequence[int]:
        """Return how many drafts each row verified; known at launch."""
        ...

    @property
    def nodes(self) -> Mapping[int, Sequence[int]]:
        """Return the indices, from 0, of the accepted drafts of each row with a draft tree; known once read."""
        ...

    @property
    def pass_seconds(self) -> tuple[float, float] | None:
        """Return the target's and the drafter's time; None if no call waits for a pass."""
        ...

    def read(self) -> Sequence[Sequence[int]]:
        """Wait, then return the tokens that each row emitted, at most K + 1; none for an idle row."""
        ...


class Lanes(Protocol):
    """The windows of all active slots, or the one window of a prompt chunk. Rounds are written over lanes.

    ``verify``, ``draft``, ``draft_tree``, ``extend``, ``defer`` and ``advance`` enqueue work for every row without
    waiting, so they can be captured in a CUDA graph. The windows persist between rounds and K may change: drafts beyond
    the next K are dropped, and a row with fewer drafts verifies those it has.
    """

    def verify(self, k: int) -> None:
        """Run one target pass over the newest token and up to ``k`` drafts; emits y_0 .. y_a, as far as they agree."""
        ...

    def draft(self, k: int) -> None:
        """Run one drafter pass over the committed columns, for drafts after y_a: the ``k`` of ``verify``, at least 1.

        An autoregressive drafter returns only the first of them.
        """
        ...

    def draft_tree(self, k: int) -> None:
        """Run ``draft`` for a tree of ``k`` nodes; for a chain if the graphs or the request do not support trees."""
        ...

    def extend(self) -> None:
        """Run an autoregressive drafter once more, over its last draft and hidden state, to get the next draft."""
        ...

    def defer(self) -> None:
        """Skip drafting: defer what ``verify(0)`` committed to the drafter's next pass, which may run immediately."""
        ...

    def advance(self, k: int) -> None:
        """Lay out the next window: y_a and the ``k`` drafts of ``draft``; with 0 only y_a, regardless of drafts."""
        ...

    def emission(self) -> Emission:
        """Return the emission of ``verify``.

        Reading it before the round has ended waits, which a CUDA graph cannot capture.
        """
        ...

    def propose(self, drafts: Sequence[Sequence[int] | None]) -> None:
        """Set host drafts, per slot, after the newest tokens; call it before ``verify``.

        None leaves the slot's window unchanged.
        """
        ...
