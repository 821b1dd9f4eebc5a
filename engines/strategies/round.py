"""The speculative round (P-EAGLE, arXiv 2602.01469): verify, accept the agreeing prefix, draft K in one pass.

    tokens = target(newest, draft_1 .. draft_K)        # one pass; y_0..y_a are emitted, a drafts were right
    draft  = drafter(y_0..y_a, [mask] * (K - 1))       # one pass; real features for what is committed
    window = [y_a, draft]

With K = 0 there is no drafter and this is plain decoding of the same target.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..backends.base import Backend, Chunk, Emission
from ..requests.params import SamplingParams

PREFILL_CHUNK = 512  # columns; a longer pass is no faster, and other rows wait for it


class Round:
    """Prompts in, rounds out, for every slot of a backend, which holds the windows.

    Rollback is free: a cache is never cleared, the start of the next window decides what counts, and later writes
    overwrite what was rejected.
    """

    def __init__(self, backend: Backend, num_speculative_tokens: int) -> None:
        self.backend, self.k = backend, num_speculative_tokens
        backend.begin(num_speculative_tokens)

    def prefill(self, slot: int, prompt: Sequence[int], params: SamplingParams, numbers: np.ndarray) -> Emission:
        """Run ``prompt`` through both models, in chunks, into ``slot``; one row emits the first token after it.

        ``numbers`` f32 [max_seq_len + 1]: entry p decides the token at absolute position p.
        """
        self.backend.admit(slot, params, numbers)
        for chunk in chunks(prompt, min(PREFILL_CHUNK, self.backend.prefill_columns)):
            self.backend.prefill(slot, chunk)
        return self.backend.first(slot)

    def step(self) -> Emission:
        """One round for every busy slot, all rows in the order of the slots."""
        return self.backend.step()

    def retire(self, slot: int) -> None:
        """Make a row idle."""
        self.backend.retire(slot)


def chunks(prompt: Sequence[int], width: int) -> Iterator[Chunk]:
    """``prompt`` in pieces of ``width``; a piece knows the token after it, so that the drafter's slot gets that."""
    for start in range(0, len(prompt), width):
        end = start + width
        yield Chunk(prompt[start:end], start, prompt[end] if end < len(prompt) else -1)
