"""Further passes of an autoregressive drafter: one column per row, with the last draft and the drafter's hidden state.

The lanes run the first pass of a round. This module stores the state that each pass leaves for the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....plugins.graph_contract import HIDDEN, NEXT, NEXT_HIDDEN, TENSORS, written
from .loaded_graphs import bind, run
from .memory import Arrays


class Chain:
    """The hidden states of ``rows`` rows, f32 [rows,H], and the arrays of a further pass over adjacent rows."""

    def __init__(self, drafter: Any, rows: int, hidden: int, features: int) -> None:
        """Allocate the arrays; ``hidden`` is H, ``features`` is the number of the target's features per column."""
        self._session = drafter
        self._read, self._written = (np.zeros((rows, hidden), np.float32) for _ in range(2))
        self._inputs: Arrays = {
            "input_ids": np.zeros((rows, 1), np.int64),  # unused: a column carries the next token
            "start": np.zeros(rows, np.int64),
            "window_len": np.ones(rows, np.int32),
            "draft_len": np.zeros(rows, np.int32),
            "tokens": np.full((rows, 2), -1, np.int32),
            "num_tokens": np.ones(rows, np.int32),
            "aux_hidden": np.zeros((rows, 0, features), np.float32),
        }
        self._outputs: Arrays = {
            name: np.zeros((rows, 2) if name == NEXT[0] else rows, TENSORS[name].dtype) for name in NEXT
        }
        self._bindings: dict[tuple[int, int], Any] = {}

    def reads(self, first: int, count: int) -> Arrays:
        """Return the additional inputs of a pass over these rows; the first pass of a round ignores them."""
        return {HIDDEN: self._read[first : first + count]}

    def writes(self, first: int, count: int) -> Arrays:
        """Return the additional outputs of a pass over these rows."""
        return {NEXT_HIDDEN: self._written[first : first + count]}

    def extend(self, first: int, drafts: Sequence[int], positions: Sequence[int], caches: Arrays) -> list[int]:
        """Run a pass over the rows from ``first`` on, and return the next drafts.

        ``drafts`` are the last drafts, at ``positions``; ``caches`` are those of these rows.
        """
        rows = slice(first, first + len(drafts))
        self._read[rows] = self._written[rows]
        self._inputs["tokens"][rows, 0], self._inputs["start"][rows] = drafts, positions
        run(self._session, self.binding(first, len(drafts), caches))
        next_drafts: list[int] = self._outputs[NEXT[0]][rows, 1].tolist()
        return next_drafts

    def binding(self, first: int, count: int, caches: Arrays) -> Any:
        """Return the binding of a further pass over these rows."""
        rows, key = slice(first, first + count), (first, count)
        if key not in self._bindings:
            inputs = {name: array[rows] for name, array in self._inputs.items()} | self.reads(*key) | caches
            outputs = {name: array[rows] for name, array in self._outputs.items()} | self.writes(*key)
            self._bindings[key] = bind(self._session, inputs, outputs | {written(n): c for n, c in caches.items()})
        return self._bindings[key]
