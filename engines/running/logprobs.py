"""Logprobs of emitted tokens and of prompt tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..requests.results import TokenLogprob

SCORED_BYTES = 32 * 2**20  # maximum size of the logits of a prompt chunk


def logprob_of(token: int, logits: np.ndarray, count: int) -> TokenLogprob:
    """Return the logprob of ``token`` by ``logits`` f32 [V], its rank, and the ``count`` most likely ids and theirs."""
    wide = logits.astype(np.float64)
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    count = min(count, len(wide))
    best = np.argpartition(-wide, count - 1)[:count] if count else np.empty(0, np.int64)
    best = best[np.lexsort((best, -wide[best]))]
    top = tuple((int(i), float(wide[i])) for i in best)
    return TokenLogprob(token, float(wide[token]), 1 + int((wide > wide[token]).sum()), top)


class PromptLogprobs:
    """Collects the logprobs of a prompt's tokens while it is read.

    The target's logits are V numbers per token, so chunks are at most ``columns`` wide. The last token is a chunk of
    its own, whose logits decide the first new token.
    """

    def __init__(self, prompt: Sequence[int], count: int, vocab: int) -> None:
        """``count`` is the number of top tokens to report per position."""
        self.columns = max(1, SCORED_BYTES // (4 * vocab))
        self._prompt, self._count = prompt, count
        self._found: list[TokenLogprob] = []

    def add(self, start: int, logits: np.ndarray) -> None:
        """Add the logits after every token of a chunk, f32 [columns,V], which begins at ``start``."""
        for at, row in enumerate(logits, start + 1):
            self._found.append(logprob_of(self._prompt[at], row, self._count))

    def entries(self) -> tuple[TokenLogprob | None, ...]:
        """Return one entry per token that was read; the first is None, because nothing precedes it."""
        return (None, *self._found)
