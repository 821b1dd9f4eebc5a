"""Launched passes that have not been read, and the prompt whose chunks are being launched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..backends.base import Chunk
from ..draft_methods.lanes import Emission
from ..running.request import Request
from .round_policies import RoundPolicy


@dataclass(frozen=True)
class Flight:
    """A launched pass: its emission, the requests by row, and their slots at that time.

    ``most`` is the maximum number of tokens per row. A prompt chunk other than the last emits nothing. Late tokens of a
    request that has ended meanwhile are dropped; the next request in its slot is not among ``owners``. ``policies``
    chose K of a round. ``launched_at`` is a time of ``time.perf_counter``.
    """

    emission: Emission | None = None
    owners: Sequence[Request | None] = ()
    slots: Sequence[int] = ()
    most: Sequence[int] = ()
    policies: Sequence[RoundPolicy] = ()
    launched_at: float = 0.0


@dataclass
class PromptReading:
    """A prompt that is being read into a slot; ``position`` is the start of its next chunk."""

    request: Request
    slot: int
    k: int
    position: int = 0

    def next(self, width: int) -> Chunk:
        """Return the next chunk, which includes the token after it, because the drafter needs that."""
        prompt, start, self.position = self.request.prompt, self.position, self.position + width
        logprobs = self.request.prompt_logprobs if self.rest else None
        return Chunk(prompt[start : start + width], start, prompt[start + width] if self.rest else -1, logprobs)

    @property
    def is_scored(self) -> bool:
        """Return whether logprobs of the prompt were requested."""
        return self.request.prompt_logprobs is not None

    @property
    def most(self) -> int:
        """Maximum number of tokens of the next chunk."""
        logprobs = self.request.prompt_logprobs
        return self.rest if logprobs is None else min(max(self.rest - 1, 1), logprobs.columns)

    @property
    def rest(self) -> int:
        """Number of tokens left to read."""
        return max(len(self.request.prompt) - self.position, 0)
