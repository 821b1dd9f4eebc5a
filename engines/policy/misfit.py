"""Whether drafter and target belong together: acceptance near nothing says that they do not.

A head of random weights has about one first draft in a thousand accepted; one that was trained for its target, every
third or more. Texts that are drawn at a high temperature are not asked: nobody guesses those.
"""

from __future__ import annotations

import logging

LEAST_DRAFTS, LEAST_RATE = 48, 0.04  # first drafts that were verified, and how many of them must be accepted
_LOG = logging.getLogger("peagle.policy")


class MisfitWatch:
    """Counts the first drafts of all texts, and says once, in the log, that they are as good as never accepted."""

    def __init__(self) -> None:
        self.drafts = self.accepted = 0
        self.warning = ""

    def add(self, drafted: int, accepted: int) -> None:
        """Count one round of one text."""
        if not drafted:
            return
        self.drafts += 1
        self.accepted += accepted > 0
        if self.drafts < LEAST_DRAFTS:
            return
        if self.accepted >= LEAST_RATE * self.drafts:
            self.warning = ""
        elif not self.warning:
            self.warning = (
                f"of {self.drafts} first drafts {self.accepted} were accepted: the drafter does not belong to this "
                "target, or to its precision; the text is right, and speculation brings nothing. Build the engine with "
                "the head that was trained for this target, or with --draft none"
            )
            _LOG.warning("%s", self.warning)
