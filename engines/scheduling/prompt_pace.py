"""Prompt tokens that are read between two rounds: as many as take the time of almost two rounds.

Running requests then wait less than three rounds for most of their tokens while a prompt is read, and about four for
single ones, unless a few tokens of the prompt take longer than that. The pace learns from the rounds and pieces that it
is told about. It uses no clock.
"""

from __future__ import annotations

import statistics
from collections import deque
from math import inf

from ..backends.base import Backend

ROUNDS = 1.75  # time for a prompt between two rounds, in rounds; with 2, single gaps reached four rounds
LEAST = 4  # tokens; also the size of the first piece, before anything was measured
FIXED = 128  # tokens, where passes cannot be timed
_BITS = 4  # significant bits of a size: a backend keeps memory for the sizes that it has seen, so they are few
_ROUNDS, _PIECES = 9, 3  # latest rounds and pieces; their medians count, as other programs slow single ones


class PromptPace:
    """Sizes the pieces of prompts that are read beside running requests. With ``fixed``, so many tokens, always."""

    def __init__(self, fixed: int | None = None) -> None:
        self.last = 0  # tokens of the last piece
        self._fixed = fixed
        self._rounds: deque[float] = deque(maxlen=_ROUNDS)
        self._costs: deque[float] = deque(maxlen=_PIECES)  # seconds per token
        self._read, self._spent = 0, 0.0  # tokens and seconds since the last round

    def piece(self, most: int) -> int:
        """Return the size of the next piece, at most ``most``, or 0 if a round comes first."""
        if self._fixed is not None:
            size = min(most, self._fixed)
            return 0 if self._read and self._read + size > self._fixed else size
        size = min(most, self._most())
        if not self._read:
            return size
        next_one = max(size * self._cost, self._spent)  # a short one costs hardly less than a longer one
        return size if self._spent + next_one <= self._budget else 0

    def add_piece(self, tokens: int, seconds: float, *, beside: bool) -> None:
        """Record a piece, which was read ``beside`` running requests or alone.

        Alone, pieces are large and cost less per token, so small ones cannot be sized by them.
        """
        self.last = tokens
        self._read += tokens
        self._spent += seconds
        if beside and seconds > 0:
            self._costs.append(seconds / tokens)

    def begin_round(self) -> None:
        """Start counting anew: a round is launched."""
        self._read, self._spent = 0, 0.0

    def add_round(self, seconds: float) -> None:
        """Record the duration of a round."""
        if seconds > 0:
            self._rounds.append(seconds)

    @property
    def _budget(self) -> float:
        return ROUNDS * statistics.median(self._rounds) if self._rounds else 0.0

    @property
    def _cost(self) -> float:
        """Seconds per token of pieces beside running requests."""
        return statistics.median(self._costs) if self._costs else inf

    def _most(self) -> int:
        """Return the tokens that fit between two rounds.

        A larger piece costs less per token than the last ones did, so sizes grow to the limit and do not pass it.
        """
        tokens = int(self._budget / self._cost)
        unused = max(tokens.bit_length() - _BITS, 0)
        return max(tokens >> unused << unused, LEAST)


def pace_of(backend: Backend, max_prefill_tokens: int | None = None) -> PromptPace:
    """Return the pace of a backend: by time, unless a number is given or calls return before their pass has ended."""
    return PromptPace(max_prefill_tokens or (FIXED if backend.lag else None))
