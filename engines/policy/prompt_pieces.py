"""Chooses the number of prompt tokens to process between two rounds, from the measured time of rounds and pieces.

    seconds of the pieces between two rounds <= 2.5 rounds

Running requests therefore wait for less than 4 rounds: the pieces, the round itself, and a margin for variation. The
time of a round is that of the last ones, because it grows with their texts and their number. The time per token is
measured by position, because attention grows with it.

Small pieces cost more per token, since each reads all weights again, and with experts nearly as many as a large piece.
Pieces whose tokens take more than three times as long as in the best piece seen are too small: running requests then
wait longer, so that prompts take at most about three times as long.

The policy depends only on the rounds and pieces that are reported to it. It uses no clock.
"""

from __future__ import annotations

import statistics
from collections import deque
from typing import Protocol

ROUNDS = 2.5  # time of the pieces between two rounds, in rounds
MIN = 4  # tokens; a pass over fewer takes nearly as long, and a prompt would take several times as long
DEAREST = 3.0  # most that a token takes, in times of a token of the best piece
_MAX_SUFFICIENT = 128  # tokens of a piece that are always enough
_FIRST = 32  # tokens between two rounds before anything was measured
_RECENT = 9  # rounds whose median is the time of a round
_PIECES = 3  # pieces whose median is the time of a piece
_BUCKET_TOKENS = 512  # adjacent positions whose tokens take about as long


class PromptPieces(Protocol):
    """Limits the prompt tokens that are read between two rounds."""

    def max_tokens(self, position: int, *, scored: bool) -> int:
        """Return the maximum number of tokens of the first piece after a round; it starts at ``position``.

        ``scored``: all its logits are read.
        """
        ...

    def fits(self, position: int, tokens: int, *, scored: bool) -> bool:
        """Return True if a piece may be read before the next round."""
        ...

    def add_piece(self, position: int, tokens: int, seconds: float, *, scored: bool) -> None:
        """Record a piece that was read."""
        ...

    def begin_round(self) -> None:
        """Record that a round is launched: what was read before it no longer counts."""
        ...

    def add_round(self, seconds: float | None) -> None:
        """Record the duration of a round, None if it is unknown."""
        ...


class FixedPieces:
    """A fixed number of tokens between two rounds."""

    def __init__(self, tokens: int) -> None:
        self._tokens, self._read = tokens, 0

    def max_tokens(self, position: int, *, scored: bool) -> int:
        """Return the fixed number."""
        del position, scored
        return self._tokens

    def fits(self, position: int, tokens: int, *, scored: bool) -> bool:
        """Return True if nothing was read since the last round, or the sum is within the limit."""
        del position, scored
        return not self._read or self._read + tokens <= self._tokens

    def add_piece(self, position: int, tokens: int, seconds: float, *, scored: bool) -> None:
        """Count the tokens."""
        del position, seconds, scored
        self._read += tokens

    def begin_round(self) -> None:
        """Start counting again."""
        self._read = 0

    def add_round(self, seconds: float | None) -> None:
        """Do nothing."""


class TimedPieces:
    """Tokens that take the time of ``ROUNDS`` rounds; more if small pieces are too expensive, at least ``MIN``."""

    def __init__(self) -> None:
        self._rounds: deque[float] = deque(maxlen=_RECENT)
        self._pieces: dict[tuple[bool, int], deque[tuple[int, float]]] = {}  # by ``_key``
        self._best: dict[tuple[bool, int], float] = {}  # seconds of a token in the best piece, by ``_key``
        self._sufficient: dict[bool, int] = {}  # tokens of pieces that are not too small, if smaller ones were
        self._read, self._spent = 0, 0.0  # tokens and seconds of the pieces since the last round

    def max_tokens(self, position: int, *, scored: bool) -> int:
        """Return the number of tokens that take the time allowed, by the last pieces near there.

        It at most doubles. Only some sizes are used, so that the memory of their passes is reused.
        """
        timings = self._near(position, scored)
        if not timings or not self._rounds:
            return _FIRST
        tokens = min(self._tokens_in(ROUNDS * self._round, timings), 2 * statistics.median(n for n, _ in timings))
        return _size(max(tokens, self._sufficient.get(scored, MIN)))

    def fits(self, position: int, tokens: int, *, scored: bool) -> bool:
        """Return True if nothing was read since the last round, or the sum is likely to take the time allowed."""
        if not self._read:
            return True
        timings = self._near(position, scored)
        if not timings or not self._rounds:
            return self._read + tokens <= _FIRST
        return tokens <= self._tokens_in(ROUNDS * self._round - self._spent, timings)

    def add_piece(self, position: int, tokens: int, seconds: float, *, scored: bool) -> None:
        """Learn the time of pieces at this position."""
        self._read, self._spent = self._read + tokens, self._spent + seconds
        key, each = _key(position, scored), seconds / tokens
        self._pieces.setdefault(key, deque(maxlen=_PIECES)).append((tokens, seconds))
        self._best[key] = min(each, self._best.get(key, each))
        timings = self._pieces[key]
        # The first passes over a slot take a hundred times as long as later ones, so all these pieces have to be dear.
        is_usual = self._rounds and len(timings) == _PIECES and max(n for n, _ in timings) <= tokens
        if is_usual and min(took / n for n, took in timings) > DEAREST * self._best[key]:
            self._sufficient[scored] = max(min(2 * tokens, _MAX_SUFFICIENT), self._sufficient.get(scored, MIN))

    def begin_round(self) -> None:
        """Start counting again."""
        self._read, self._spent = 0, 0.0

    def add_round(self, seconds: float | None) -> None:
        """Learn the time of a round."""
        if seconds is not None:
            self._rounds.append(seconds)

    @property
    def _round(self) -> float:
        return statistics.median(self._rounds)

    def _near(self, position: int, scored: bool) -> deque[tuple[int, float]] | None:
        """Return the last pieces at the nearest known position, rather before than after it."""
        wanted = _key(position, scored)[1]
        known = [at for is_scored, at in self._pieces if is_scored == scored]
        before = max((at for at in known if at <= wanted), default=None)
        nearest = min(known, default=None) if before is None else before
        return None if nearest is None else self._pieces[scored, nearest]

    def _tokens_in(self, allowed: float, timings: deque[tuple[int, float]]) -> float:
        """Return the tokens that fit into ``allowed`` seconds, judging by these pieces.

        Of proportion, and a pass of which the seconds of a round do not depend on the tokens, because both read all
        weights, the smaller result is taken. The sizes converge all the same: a piece of the wanted duration is
        repeated.
        """
        fitting = []
        for tokens, seconds in timings:
            fixed = min(self._round, seconds / 2)
            fitting.append(tokens * min(allowed / seconds, (allowed - fixed) / (seconds - fixed)))
        return statistics.median(fitting)


def _key(position: int, scored: bool) -> tuple[bool, int]:
    return scored, position // _BUCKET_TOKENS


def _size(tokens: float) -> int:
    """Return the largest number up to ``tokens`` with at most three leading binary digits, a multiple of ``MIN``."""
    count = max(int(tokens), MIN)
    step = max(MIN, 1 << (count.bit_length() - 3))
    return count // step * step
