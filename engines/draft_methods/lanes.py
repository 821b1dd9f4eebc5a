"""Lanes, which the rounds of a draft method are written over, and what a round emits. Backends implement both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np


class Emission(Protocol):
    """What a launched pass emits, perhaps not yet: B rows, K + 1 columns. ``drafted`` drafts were verified in each."""

    @property
    def drafted(self) -> Sequence[int]:
        """How many drafts each row had verified; known when the pass is launched."""
        ...

    @property
    def nodes(self) -> Mapping[int, Sequence[int]]:
        """The numbers, from 0, of the accepted drafts of each row whose drafts were a tree; known when it is read."""
        ...

    @property
    def pass_seconds(self) -> tuple[float, float] | None:
        """How long the target took and the drafter, None where no call waits for a pass."""
        ...

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        """``tokens`` i32 [B,K+1], -1 past the end, and ``num_tokens`` i32 [B], 0 in an idle row; waits for them."""
        ...


class Lanes(Protocol):
    """The windows of all busy slots, or the one window of a piece of a prompt; a round is written over them.

    ``verify``, ``draft``, ``branch``, ``extend``, ``hold`` and ``advance`` enqueue work for every row and wait for none
    of it, so they can be part of a CUDA graph. Between rounds the windows stay here, and K may change: drafts past the
    next K are cut off, and where there are fewer, those are verified that there are.
    """

    def verify(self, k: int) -> None:
        """One target pass over the newest token and up to ``k`` drafts; emits y_0 .. y_a, as far as they agree."""
        ...

    def draft(self, k: int) -> None:
        """One drafter pass over what was just committed, for drafts after y_a: the ``k`` of ``verify``, 1 at least.

        A drafter that makes a pass for every draft, which its engine says, gives the first of them.
        """
        ...

    def branch(self, k: int) -> None:
        """``draft``, for a tree of ``k`` nodes where graphs and requests know trees; for the chain where not."""
        ...

    def extend(self) -> None:
        """One more pass of such a drafter, over its last draft alone and its own hidden state there: the next draft."""
        ...

    def hold(self) -> None:
        """Draft nothing: keep what ``verify(0)`` committed for the drafter's next pass, which may be made at once."""
        ...

    def advance(self, k: int) -> None:
        """Lay out the next window: y_a and the ``k`` drafts of ``draft``; with 0 y_a alone, whatever was drafted."""
        ...

    def emission(self) -> Emission:
        """What ``verify`` emitted. Who reads it before the round has ended waits, and no CUDA graph can hold that."""
        ...

    def propose(self, drafts: Sequence[Sequence[int] | None]) -> None:
        """Put drafts of the host's own, some for every slot or none, behind the newest tokens, before ``verify``.

        None leaves the slot's window as it is.
        """
        ...
