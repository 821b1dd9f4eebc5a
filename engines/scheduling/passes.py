"""Launched passes that have not been read, and the prompts whose chunks are being launched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..backends.base import Chunk, KeptEntries
from ..draft_methods.lanes import Emission
from ..running.request import Request
from .round_policies import RoundPolicy


@dataclass(frozen=True)
class Flight:
    """A launched pass: its emission, the requests by row, and their slots at that time.

    ``max_tokens`` is the maximum number of tokens per row. A prompt chunk other than the last emits nothing. Late
    tokens of a request that has ended in the meantime are dropped; the next request in its slot is not among
    ``owners``. ``policies`` chose K of a round. ``launched_at`` is a time of ``time.perf_counter``.
    """

    emission: Emission | None = None
    owners: Sequence[Request | None] = ()
    slots: Sequence[int] = ()
    max_tokens: Sequence[int] = ()
    policies: Sequence[RoundPolicy] = ()
    launched_at: float = 0.0


@dataclass(eq=False)
class PromptReading:
    """A prompt that is being read into a slot; ``position`` is the start of its next chunk.

    It waits for the earlier prompts ``behind`` which it queued and with which it shares a prefix, because it can copy
    their entries. ``found`` are cache entries of its beginning that are to be copied; None: not looked for yet.
    """

    request: Request
    slot: int
    k: int
    behind: Sequence[PromptReading] = ()
    position: int = 0
    found: list[KeptEntries] | None = None
    offered: int = 0  # tokens whose cache entries have been offered to the prefix cache

    def next(self, width: int) -> Chunk:
        """Return the next chunk, which includes the token after it, because the drafter needs that."""
        prompt, start, self.position = self.request.prompt, self.position, self.position + width
        logprobs = self.request.prompt_logprobs if self.rest else None
        return Chunk(prompt[start : start + width], start, prompt[start + width] if self.rest else -1, logprobs)

    def shares_prefix(self, request: Request, known: int) -> bool:
        """Return True if this prompt has at least half of what the request must read after its ``known`` tokens."""
        own, half = self.request, (known + len(request.prompt) + 1) // 2
        drafts = own.method.needs_head >= request.method.needs_head
        return drafts and own.salt == request.salt and own.prompt[:half] == request.prompt[:half]

    @property
    def is_scored(self) -> bool:
        """Return True if logprobs of the prompt were requested."""
        return self.request.prompt_logprobs is not None

    @property
    def max_tokens(self) -> int:
        """Maximum number of tokens of the next chunk."""
        logprobs = self.request.prompt_logprobs
        return self.rest if logprobs is None else min(max(self.rest - 1, 1), logprobs.columns)

    @property
    def rest(self) -> int:
        """Number of tokens left to read."""
        return max(len(self.request.prompt) - self.position, 0)
