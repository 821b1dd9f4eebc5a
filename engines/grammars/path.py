"""The state of one text in its grammar: which tokens may follow."""

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


_FORCED_PRIOR = 5.0, 4.0  # prior for forced drafts: that many tried, and that many accepted


class GrammarPath:
    """The state of one text in its grammar. ``failure`` is the error if the text cannot continue.

    ``drafted`` counts tokens that were drafted because the grammar forces them, and ``accepted`` those that the target
    accepted. ``refused`` counts the drafter's own drafts that were replaced or that may not follow. ``reach`` is the
    maximum number of drafts in a window if all are forced. ``judged`` is how many of the drafter's last drafts the
    round tests; drafts behind a forced one, or replaced by one, are not tested.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        guide: LLMatcher,
        vocab: int,
        end_ids: Sequence[int],
        foreign: Sequence[int],
        tally: GrammarTally,
    ) -> None:
        """``matcher`` and ``guide`` are at their start, for at least the ids 0..``vocab`` - 1.

        ``matcher`` decides what may follow, and shares nothing with another text. ``guide`` looks ahead, for drafts. It
        can exceed its work limit, in this text or in another one that has a copy; then nothing is forced here.

        ``end_ids`` end the text, only where the grammar may end. ``foreign`` are other tokens that llguidance treats as
        ends; they are banned unless they are among ``end_ids``.
        """
        self._matcher, self._vocab = matcher, vocab
        self._guide: LLMatcher | None = guide
        self._ends = np.array(sorted(end for end in end_ids if end < vocab), np.int64)
        self._foreign = np.array(sorted(foreign), np.int64)
        self._tally, self._has_ended = tally, False
        self._forced: list[bool] = []  # for each of the last drafts, whether it was forced
        self._next: list[int] | None = None  # forced tokens at this point, once known
        self._sure, self._taken = _FORCED_PRIOR  # tried and accepted forced drafts after no other
        self.drafted = self.accepted = self.refused = self.reach = self.judged = 0
        self.failure: UsageError | None = None

    def allowed(self) -> np.ndarray:
        """Return the ids that may follow, bool [V].

        After the end, all ids are allowed, but this is unused. After a failure, possibly no id is allowed.
        """
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
            self.fail("no token of the vocabulary can follow")
        return bits

    def advance(self, token: int) -> None:
        """Advance by an allowed token."""
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
        """Return the tokens that must follow, as far as the grammar leaves no choice."""
        if self._next is None:
            is_over = self._has_ended or self.failure is not None
            self._next = [] if is_over or self._guide is None else self._guide.deep_copy().compute_ff_tokens()
        return self._next

    @property
    def trust(self) -> float:
        """The rate at which forced drafts with no draft before them are accepted."""
        return self._taken / self._sure

    def drafts(self, own_drafts: Sequence[int], max_drafts: int) -> list[int]:
        """Return up to ``max_drafts`` drafts: tokens that the grammar forces, and ``own_drafts`` between them.

        A drafter's drafts keep their positions as far as the grammar allows them. Forced text is only drafted, because
        it can be tokenized in several ways and the target may choose another one. If all drafts are forced, there are
        up to ``reach``.
        """
        found: list[int] = []
        self._forced, self.judged = [], 0
        if self._has_ended or max(max_drafts, self.reach) == 0:
            return found
        if self._guide is None:
            return self._without_check(own_drafts, max_drafts)
        ahead = self._guide.deep_copy()
        while (at := len(found)) < (room := max(max_drafts, self.reach) if all(self._forced) else max_drafts):
            forced = (ahead.compute_ff_tokens() if at else self.forced())[: room - at]
            news = forced or list(own_drafts[at : min(at + 1, max_drafts)])
            if not news or news[0] in self._ends:
                break
            if ahead.try_consume_tokens(news) < len(news):
                if ahead.is_error():
                    self._guide = None
                    return self._without_check(own_drafts, max_drafts)
                if not any(self._forced):
                    self.judged = min(len(own_drafts), max_drafts)  # none of the remaining drafts can be accepted
                break
            found += news
            self._forced += [bool(forced)] * len(news)
        self.judged = max(self.judged, self._forced.index(True) if any(self._forced) else len(found))
        self.refused += sum(draft not in found[at : at + 1] for at, draft in enumerate(own_drafts))
        self.drafted += sum(self._forced)
        return found

    def _without_check(self, own_drafts: Sequence[int], max_drafts: int) -> list[int]:
        """Return a drafter's drafts unchanged; the target rejects those that may not follow."""
        found = list(own_drafts[:max_drafts])
        self._forced, self.judged = [False] * len(found), len(found)
        return found

    def verified(self, accepted: int) -> None:
        """Record how many of the last ``drafts`` the target accepted."""
        self.accepted += sum(self._forced[:accepted])
        sure = self._forced.index(False) if False in self._forced else len(self._forced)
        self._sure, self._taken = self._sure + sure, self._taken + min(accepted, sure)
        self._forced = []

    def fail(self, why: str) -> None:
        """Record that the text cannot continue."""
        if self.failure is not None:
            return
        self._tally.get_stuck()
        self.failure = UsageError(
            f"{NAME}: the text cannot be continued",
            why=why,
            fix="simplify the grammar, or do not ban tokens that it needs",
        )
