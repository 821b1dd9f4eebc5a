"""Options of the speed estimate: how many tokens a round yields."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from ...plugins.errors import UsageError
from ...plugins.graph_contract import MAX_DRAFTS
from ...plugins.problems import counted
from ..console.option_fields import option

_FLAG = "--acceptance-length"
_FIX = f"use values such as {_FLAG} 4:3.2,8:4.1, or one number for the trained depth of the head"


@dataclass(frozen=True)
class SpeedOptions:
    """Options of the speed estimate; they do not affect an engine."""

    acceptance_length: tuple[str, ...] = option(
        _FLAG,
        "Acceptance length for the speed estimate: tokens per round by number of drafts, such as 4:3.2,8:4.1, or one "
        "number for the head's trained depth. (default: the lengths published with the head, if there are any)",
        (),
        split=True,
    )

    def lengths(self, trained_depth: int) -> Mapping[int, float]:
        """Return tokens per round by number of drafts, ascending; a number alone is for ``trained_depth``.

        Empty if none was given. Raises ``UsageError`` for lengths that are impossible.
        """
        found: dict[int, float] = {}
        for k, tokens in self._entries(trained_depth):
            if k in found:
                raise _refused(self, f"{k} drafts have two acceptance lengths")
            found[k] = tokens
        ordered = dict(sorted(found.items()))
        for (fewer, less), (k, more) in pairwise([(0, 1.0), *ordered.items()]):
            if not less <= more <= less + (k - fewer):
                given = f" if {counted(fewer, 'draft')} yield {less:g}" if fewer else ""
                raise _refused(
                    self,
                    f"{counted(k, 'draft')} cannot yield {more:g} tokens per round: the range is {less:g} to "
                    f"{less + k - fewer:g}{given}",
                )
        return ordered

    def check(self) -> None:
        """Raise ``UsageError`` for lengths that are impossible, or not numbers."""
        self.lengths(MAX_DRAFTS)

    def _entries(self, trained_depth: int) -> Iterator[tuple[int, float]]:
        for text in self.acceptance_length:
            drafts, colon, length = text.rpartition(":")
            if not colon and len(self.acceptance_length) > 1:
                raise _refused(self, f"{text!r} does not state its number of drafts")
            k = int(drafts) if drafts.isdecimal() and len(drafts) < 10 else 0
            if colon and not 1 <= k <= MAX_DRAFTS:
                raise _refused(self, f"{drafts!r} is not a number of drafts from 1 to {MAX_DRAFTS}")
            try:
                tokens = float(length)
            except ValueError:
                tokens = math.nan
            if not math.isfinite(tokens):
                raise _refused(self, f"{length!r} is not a number of tokens")
            yield (k if colon else trained_depth), tokens


def _refused(options: SpeedOptions, why: str) -> UsageError:
    return UsageError(f"{_FLAG} {','.join(options.acceptance_length)}: invalid lengths", why=why, fix=_FIX)
