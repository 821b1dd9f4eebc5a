"""Chooses how many tokens of a prompt are read between two rounds, from the measured time of rounds and pieces.

    seconds of the pieces + seconds of the round after them <= 3.5 rounds that follow a round

Running requests therefore wait for less than 4 undisturbed rounds, with some room for the spread. A round after a piece
takes longer than others, because the piece has used the processor's caches. Pieces may take as long as that round in
any case: with shorter ones, prompts would get the smaller part of the time. The time per token is measured by position,
because attention grows with it.

The policy depends only on the rounds and pieces that it is told about. It uses no clock.
"""

from __future__ import annotations

import statistics
from collections import deque
from typing import Protocol

ROUNDS = 3.5  # time of the pieces and the round after them, in undisturbed rounds
LEAST = 4  # tokens; a pass over fewer takes nearly as long, and a prompt would take several times as long
_FIRST = 32  # tokens between two rounds before anything was measured
_RECENT = 9  # rounds whose median is the time of a round
_NO_PIECES = 2.0  # time of the pieces in rounds, before a round after a piece was measured
_PIECES = 3  # pieces whose median is the time of a piece
_ALIKE = 512  # adjacent positions whose tokens take about as long


class PromptPieces(Protocol):
    """Limits the prompt tokens that are read between two rounds."""

    def most(self, position: int, *, scored: bool) -> int:
        """Return the maximum number of tokens of the first piece after a round; it starts at ``position``.

        ``scored``: all its logits are read.
        """
        ...

    def fits(self, position: int, tokens: int, *, scored: bool) -> bool:
        """Return whether a piece may be read before the next round."""
        ...

    def add_piece(self, position: int, tokens: int, seconds: float, *, scored: bool) -> None:
        """Record a piece that was read."""
        ...

    def begin_round(self) -> None:
        """Record that a round is launched: what was read before it no longer counts."""
        ...

    def add_round(self, seconds: float | None, busy: int) -> None:
        """Record the duration of a round of ``busy`` requests, None if it is unknown."""
        ...


class FixedPieces:
    """At most ``tokens`` tokens between two rounds."""

    def __init__(self, tokens: int) -> None:
        self._tokens, self._read = tokens, 0

    def most(self, position: int, *, scored: bool) -> int:
        """Return the fixed number."""
        del position, scored
        return self._tokens

    def fits(self, position: int, tokens: int, *, scored: bool) -> bool:
        """Return whether nothing was read since the last round, or the sum is within the limit."""
        del position, scored
        return not self._read or self._read + tokens <= self._tokens

    def add_piece(self, position: int, tokens: int, seconds: float, *, scored: bool) -> None:
        """Count the tokens."""
        del position, seconds, scored
        self._read += tokens

    def begin_round(self) -> None:
        """Begin to count anew."""
        self._read = 0

    def add_round(self, seconds: float | None, busy: int) -> None:
        """Do nothing."""


class TimedPieces:
    """As many tokens as leave running requests a gap of ``ROUNDS`` rounds, but at least ``LEAST``.

    Whoever uses it tells the duration of every round before the next piece.
    """

    def __init__(self) -> None:
        self._rounds: dict[tuple[int, bool], deque[float]] = {}  # by running requests, and whether it follows a piece
        self._pieces: dict[tuple[bool, int], deque[tuple[int, float]]] = {}  # by ``_key``
        self._busy, self._follows = 0, False  # of the last round
        self._read, self._spent = 0, 0.0  # tokens and seconds of the pieces since the last round

    def most(self, position: int, *, scored: bool) -> int:
        """Return the number of tokens that take the time allowed, by the last pieces near there.

        It at most doubles. Only some sizes are used, so that the memory of their passes is reused.
        """
        seen, (allowed, least) = self._near(position, scored), self._allowed()
        if not seen or not allowed:
            return _FIRST
        tokens = statistics.median(_tokens_in(allowed, *each, least) for each in seen)
        return _size(min(tokens, 2 * statistics.median(n for n, _ in seen)))

    def fits(self, position: int, tokens: int, *, scored: bool) -> bool:
        """Return whether nothing was read since the last round, or the sum is likely to take the time allowed."""
        if not self._read:
            return True
        seen, (allowed, least) = self._near(position, scored), self._allowed()
        if not seen or not allowed:
            return self._read + tokens <= _FIRST
        return tokens <= statistics.median(_tokens_in(allowed - self._spent, *each, least) for each in seen)

    def add_piece(self, position: int, tokens: int, seconds: float, *, scored: bool) -> None:
        """Learn the time of pieces at this position."""
        self._read, self._spent = self._read + tokens, self._spent + seconds
        self._pieces.setdefault(_key(position, scored), deque(maxlen=_PIECES)).append((tokens, seconds))

    def begin_round(self) -> None:
        """Begin to count anew."""
        self._follows, self._read, self._spent = self._read > 0, 0, 0.0

    def add_round(self, seconds: float | None, busy: int) -> None:
        """Learn the time of a round."""
        self._busy = busy
        if seconds is not None:
            self._rounds.setdefault((busy, self._follows), deque(maxlen=_RECENT)).append(seconds)

    def _allowed(self) -> tuple[float, float]:
        """Return the seconds of the pieces between two rounds, 0 if unknown, and about those that any pass takes."""
        alone, after = (self._rounds.get((self._busy, follows)) for follows in (False, True))
        undisturbed = statistics.median(alone) if alone else 0.0
        if not after:
            return _NO_PIECES * undisturbed, undisturbed
        disturbed = statistics.median(after)
        return max(ROUNDS * undisturbed - disturbed, disturbed), undisturbed or disturbed

    def _near(self, position: int, scored: bool) -> deque[tuple[int, float]] | None:
        """Return the last pieces at the nearest known position, rather before than after it."""
        wanted = _key(position, scored)[1]
        known = [at for is_scored, at in self._pieces if is_scored == scored]
        before = max((at for at in known if at <= wanted), default=None)
        nearest = min(known, default=None) if before is None else before
        return None if nearest is None else self._pieces[scored, nearest]


def _tokens_in(allowed: float, tokens: int, seconds: float, least: float) -> float:
    """Return the tokens that fit into ``allowed`` seconds, judging by a piece.

    Between proportion and a pass of which ``least`` seconds have nothing to do with the tokens, about those of a round,
    the smaller number is taken. The sizes converge all the same: a piece of the wanted duration is repeated.
    """
    fixed = min(least, seconds / 2)
    return tokens * min(allowed / seconds, (allowed - fixed) / (seconds - fixed))


def _key(position: int, scored: bool) -> tuple[bool, int]:
    return scored, position // _ALIKE


def _size(tokens: float) -> int:
    """Return the largest number up to ``tokens`` with at most three leading binary digits, a multiple of ``LEAST``."""
    whole = max(int(tokens), LEAST)
    step = max(LEAST, 1 << (whole.bit_length() - 3))
    return whole // step * step
