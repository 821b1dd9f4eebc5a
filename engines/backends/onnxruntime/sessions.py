"""The graphs of an engine as ONNX Runtime runs them, and what a pass of them emits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .chain import Chain

HELD = 64  # columns at least that are kept for the drafter, and at most that a round's own pass of it takes in
HELD_BYTES = 16 << 20  # of features, that are kept of one row


@dataclass(frozen=True)
class Emitted:
    """An emission whose tokens are there already."""

    tokens: np.ndarray
    num_tokens: np.ndarray
    drafted: Sequence[int]
    nodes: Mapping[int, Sequence[int]] = field(default_factory=dict)
    pass_seconds: tuple[float, float] | None = None

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens and how many they are, at once."""
        return self.tokens, self.num_tokens


@dataclass(frozen=True)
class Sessions:
    """The graphs, ``features`` per column of the target, and the least columns that the target is ever run over.

    Without a drafter, which is None then, the target gives no features. ``hidden`` is the size of the state that an
    autoregressive drafter hands on from pass to pass; one that makes all drafts in a pass has none. ``is_told`` says
    that the target is told the ancestors of a column; ``candidates`` are those that the drafter names for a position.
    """

    target: Any
    drafter: Any
    features: int
    hidden: int
    least_columns: int
    is_told: bool
    candidates: int

    @property
    def most_held(self) -> int:
        """How many columns of one row may wait for the drafter."""
        return max(HELD, HELD_BYTES // (4 * max(self.features, 1)))

    def chain(self, rows: int) -> Chain | None:
        """What makes the further passes of an autoregressive drafter over so many rows; None for any other."""
        return Chain(self.drafter, rows, self.hidden, self.features) if self.hidden else None

    def emitted(self, k: int) -> int:
        """How many columns E the next window of a drafter pass has: the newest token, and ``k`` drafts or one."""
        return 2 if self.hidden else k + 1
