"""What the speculative round needs from a backend. The round does not know which one it drives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..sampling import Policy


@dataclass
class Window:
    """What the target is fed next, for some rows (the graph contract's names).

    ``input_ids`` i64 [B,S]: committed-but-unfed tokens, then drafts, then padding. ``start`` i64 [B]: absolute position
    of column 0. ``window_len`` i32 [B]: valid columns, 0 for an idle row. ``draft_len`` i32 [B]: how many of them, at
    the end, are drafts. ``forced_next`` i64 [B]: the known next prompt token, else -1.
    """

    input_ids: np.ndarray
    start: np.ndarray
    window_len: np.ndarray
    draft_len: np.ndarray
    forced_next: np.ndarray

    @classmethod
    def idle(cls, rows: int, width: int) -> Window:
        """``rows`` idle rows of ``width`` columns."""
        i64, i32 = np.int64, np.int32
        return cls(np.zeros((rows, width), i64), np.zeros(rows, i64), np.zeros(rows, i32), np.zeros(rows, i32),
                   np.full(rows, -1, i64))  # fmt: skip


@dataclass
class Verified:
    """What the target said: ``tokens`` i32 [B,E], ``num_tokens`` i32 [B]; ``features`` stay with the backend."""

    tokens: np.ndarray
    num_tokens: np.ndarray
    features: Any


class Backend(Protocol):
    """Runs the target and the drafter over slots, each with its own linear caches, updated in place."""

    num_slots: int

    def verify(self, slots: range, window: Window, policy: Policy) -> Verified:
        """One target pass over the rows in ``slots``; E (emitted columns) is the width of ``policy.uniform``."""
        ...

    def draft(self, slots: range, window: Window, verified: Verified) -> Window:
        """One drafter pass from what ``verify`` was given and gave; returns the next window, K = E - 1 drafts wide."""
        ...

    def target_logits(self, window: Window, policy: Policy) -> np.ndarray:
        """f32 [E,V] of one row in slot 0, for checks."""
        ...

    def draft_logits(self, window: Window, policy: Policy) -> np.ndarray:
        """f32 [K,Vd] that one row in slot 0 would draft after this window, for checks."""
        ...
