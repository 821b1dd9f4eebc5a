"""A text on its way through a grammar: which tokens may follow it, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...plugins.errors import UsageError
from ..requests.structured_outputs import NAME
from .messages import first_line
from .tally import GrammarTally

if TYPE_CHECKING:
    from llguidance import LLMatcher


_SURE = 5.0, 4.0  # of a text's first forced drafts, what is assumed: that most of them are accepted


class GrammarPath:
    """What one text has reached of its grammar. ``failure`` says why it cannot go on, where it cannot.

    ``drafted`` tokens were drafted because the grammar forces them, ``accepted`` of them by the target; ``refused`` are
    the drafter's own whose place they took or which may not follow. ``reach`` is how many drafts a window may have
    where all are forced. Of the drafter's last drafts ``judged`` are those that the round says something of: what
    stands behind a forced one, or in its place, has not been tried.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        guide: LLMatcher,
        vocab: int,
        ends: Sequence[int],
        foreign: Sequence[int],
        tally: GrammarTally,
    ) -> None:
        """``matcher`` and ``guide`` are at their beginning, for ids 0..``vocab`` - 1 or more.

        ``matcher`` says what may follow, and shares nothing with another text. ``guide`` looks ahead, for drafts: that
        may be too much work for it, in this text or in another one that has a copy, and then nothing is forced here.

        ``ends`` end the text, where the grammar may end and nowhere else; ``foreign`` are what llguidance takes for
        ends: they never are, unless they are among ``ends``.
        """
        self._matcher, self._vocab = matcher, vocab
        self._guide: LLMatcher | None = guide
        self._ends = np.array(sorted(end for end in ends if end < vocab), np.int64)
        self._foreign = np.array(sorted(foreign), np.int64)
        self._tally, self._has_ended = tally, False
        self._forced: list[bool] = []  # of the last drafts, which of them
        self._next: list[int] | None = None  # what is forced here, once it is known
        self._sure, self._taken = _SURE  # forced drafts that nothing stood before, and those that were accepted
        self.drafted = self.accepted = self.refused = self.reach = self.judged = 0
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
        self._next = None
        if token in self._ends:
            self._has_ended = True
        elif not self._matcher.consume_token(token):
            self.fail(first_line(self._matcher.get_error()))
        elif self._guide is not None and not self._guide.consume_token(token):
            self._guide = None

    def forced(self) -> list[int]:
        """The tokens that must follow, as far as the grammar leaves no choice."""
        if self._next is None:
            is_over = self._has_ended or self.failure is not None
            self._next = [] if is_over or self._guide is None else self._guide.deep_copy().compute_ff_tokens()
        return self._next

    @property
    def trust(self) -> float:
        """How many of the forced drafts are accepted that nothing stands before."""
        return self._taken / self._sure

    def drafts(self, own: Sequence[int], most: int) -> list[int]:
        """Return up to ``most`` drafts of what follows: what the grammar forces, and between that a drafter's ``own``.

        These stay where they stand as far as the grammar lets them follow. A draft is no decision: forced text can be
        cut into tokens in other ways, and the target may choose one of them. Where what is forced goes on from the
        beginning, there are up to ``reach``.
        """
        found: list[int] = []
        self._forced, self.judged = [], 0
        if self._has_ended or max(most, self.reach) == 0:
            return found
        if self._guide is None:
            return self._untried(own, most)
        ahead = self._guide.deep_copy()
        while (at := len(found)) < (room := max(most, self.reach) if all(self._forced) else most):
            forced = (ahead.compute_ff_tokens() if at else self.forced())[: room - at]
            news = forced or list(own[at : min(at + 1, most)])
            if not news or news[0] in self._ends:
                break
            if ahead.try_consume_tokens(news) < len(news):
                if ahead.is_error():
                    self._guide = None
                    return self._untried(own, most)
                if not any(self._forced):
                    self.judged = min(len(own), most)  # none of those that are left could be accepted
                break
            found += news
            self._forced += [bool(forced)] * len(news)
        self.judged = max(self.judged, self._forced.index(True) if any(self._forced) else len(found))
        self.refused += sum(mine not in found[at : at + 1] for at, mine in enumerate(own))
        self.drafted += sum(self._forced)
        return found

    def _untried(self, own: Sequence[int], most: int) -> list[int]:
        """A drafter's drafts, of which the target refuses those that may not follow."""
        found = list(own[:most])
        self._forced, self.judged = [False] * len(found), len(found)
        return found

    def verified(self, accepted: int) -> None:
        """Note how many of the last ``drafts`` the target took."""
        self.accepted += sum(self._forced[:accepted])
        sure = self._forced.index(False) if False in self._forced else len(self._forced)
        self._sure, self._taken = self._sure + sure, self._taken + min(accepted, sure)
        self._forced = []

    def fail(self, why: str) -> None:
        """Say that the text cannot go on."""
        if self.failure is not None:
            return
        self._tally.get_stuck()
        self.failure = UsageError(
            f"{NAME}: the text cannot go on as it must",
            why=why,
            fix="make the grammar simpler, or take back what bans its tokens",
        )
