"""Passes on their way: what was launched and not read yet, and the prompt whose pieces are being launched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..backends.base import Chunk
from ..draft_methods.lanes import Emission
from ..running.request import Request
from .round_policies import RoundPolicy


@dataclass(frozen=True)
class Flight:
    """A pass that was launched: what it emits, for whom by row, and in which slots those were then.

    ``most`` is how many tokens it may bring each row. A piece of a prompt that is not the last emits nothing. A request
    that has ended meanwhile drops what comes late, and who was given its slot is not among ``owners``. ``policies`` are
    the policies that chose K of a round; it was launched at ``launched_at``, in seconds of ``time.perf_counter``.
    """

    emission: Emission | None = None
    owners: Sequence[Request | None] = ()
    slots: Sequence[int] = ()
    most: Sequence[int] = ()
    policies: Sequence[RoundPolicy] = ()
    launched_at: float = 0.0


@dataclass
class PromptReading:
    """A prompt that is being read into a slot; ``position`` is where its next piece begins."""

    request: Request
    slot: int
    k: int
    position: int = 0

    def next(self, width: int) -> Chunk:
        """Return the next piece; it knows the token after it, so that the drafter's slot gets that."""
        prompt, start, self.position = self.request.prompt, self.position, self.position + width
        logprobs = self.request.prompt_logprobs if self.rest else None
        return Chunk(prompt[start : start + width], start, prompt[start + width] if self.rest else -1, logprobs)

    @property
    def most(self) -> int:
        """How many tokens the next piece may have."""
        logprobs = self.request.prompt_logprobs
        return self.rest if logprobs is None else min(max(self.rest - 1, 1), logprobs.columns)

    @property
    def rest(self) -> int:
        """How many tokens are left to read."""
        return max(len(self.request.prompt) - self.position, 0)
