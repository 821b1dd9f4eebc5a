"""The ONNX Runtime sessions of an engine, and the emission of a pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .chain import Chain

HELD = 64  # minimum capacity for deferred columns, and the maximum that a round's drafter pass includes
HELD_BYTES = 16 << 20  # bytes of deferred features per row


@dataclass(frozen=True)
class Emitted:
    """An emission whose tokens are already available."""

    tokens: Sequence[Sequence[int]]
    drafted: Sequence[int]
    nodes: Mapping[int, Sequence[int]] = field(default_factory=dict)
    pass_seconds: tuple[float, float] | None = None

    def read(self) -> Sequence[Sequence[int]]:
        """Return the tokens, without waiting."""
        return self.tokens


@dataclass(frozen=True)
class Sessions:
    """The sessions, the target's ``features`` per column, and the minimum number of the target's columns.

    Without a drafter (None) the target outputs no features. ``hidden`` is the hidden state size of an autoregressive
    drafter, 0 for a parallel one. ``takes_ancestors`` says that the target has an ancestors input. ``candidates`` is
    the number of candidates that the drafter outputs per position.
    """

    target: Any
    drafter: Any
    features: int
    hidden: int
    min_columns: int
    takes_ancestors: bool
    candidates: int

    @property
    def max_held(self) -> int:
        """Maximum number of deferred columns per row."""
        return max(HELD, HELD_BYTES // (4 * max(self.features, 1)))

    def chain(self, rows: int) -> Chain | None:
        """Return the state of an autoregressive drafter's further passes over ``rows`` rows.

        None for other drafters.
        """
        return Chain(self.drafter, rows, self.hidden, self.features) if self.hidden else None

    def emitted(self, k: int) -> int:
        """Return E of the window after a drafter pass: the newest token, and ``k`` drafts or one."""
        return 2 if self.hidden else k + 1
