"""A text on its way through a grammar: which tokens may follow it, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...plugins.errors import UsageError
from ..requests.structured_outputs import NAME
from .messages import first_line

if TYPE_CHECKING:
    from llguidance import LLMatcher


class GrammarPath:
    """What one text has reached of its grammar. ``failure`` says why it cannot go on, where it cannot."""

    def __init__(self, matcher: LLMatcher, vocab: int, ends: Sequence[int], foreign: Sequence[int]) -> None:
        """``matcher`` is at its beginning, for ids 0..``vocab`` - 1 or more.

        ``ends`` end the text, where the grammar may end and nowhere else; ``foreign`` are what llguidance takes for
        ends: they never are, unless they are among ``ends``.
        """
        self._matcher, self._vocab = matcher, vocab
        self._ends, self._foreign = np.array(sorted(ends), np.int64), np.array(sorted(foreign), np.int64)
        self._has_ended = False
        self.failure: UsageError | None = None

    def allowed(self) -> np.ndarray:
        """Which ids may follow, bool [V]; after the end any, for nobody reads them. None may where it has failed."""
        if self._has_ended:
            return np.ones(self._vocab, bool)
        mask = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            self.fail(first_line(self._matcher.get_error()))
            return np.zeros(self._vocab, bool)
        bits = np.unpackbits(np.frombuffer(mask, np.uint8), count=self._vocab, bitorder="little").astype(bool)
        bits[self._foreign[self._foreign < self._vocab]] = False
        bits[self._ends] = self._matcher.is_accepting()
        if not bits.any():
            self.fail("no token of the model's can follow")
        return bits

    def advance(self, token: int) -> None:
        """Go on by a token that may follow."""
        if self._has_ended or self.failure is not None:
            return
        if token in self._ends:
            self._has_ended = True
        elif not self._matcher.consume_token(token):
            self.fail(first_line(self._matcher.get_error()))

    def fail(self, why: str) -> None:
        """Say that the text cannot go on."""
        self.failure = self.failure or UsageError(
            f"{NAME}: the text cannot go on as it must",
            why=why,
            fix="make the grammar simpler, or take back what bans its tokens",
        )
