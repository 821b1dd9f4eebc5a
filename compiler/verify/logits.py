"""Two models' logits on the same text: divergence, agreement, perplexity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..console.progress import Advance
from .perplexity import Array, LogitsOf, log_softmax, pooled, surprises


@dataclass(frozen=True)
class LogitsComparison:
    """Over every token of ``texts`` texts, each model fed the same tokens.

    ``kl_*``: nats, of the candidate's distribution from the reference's. ``top1_agreement``: the share of tokens after
    which both hold the same one most likely.
    """

    texts: int
    tokens: int
    kl_mean: float
    kl_p99: float
    kl_max: float
    top1_agreement: float
    perplexity_reference: float
    perplexity_candidate: float

    @property
    def perplexity_increase(self) -> float:
        """Relative to the reference."""
        return self.perplexity_candidate / self.perplexity_reference - 1


def divergence(reference: Array, candidate: Array) -> Array:
    """KL(reference || candidate) of each row, float64 [n] from logits [n, V]; NaN where a logit is not a number."""
    wanted, found = log_softmax(reference), log_softmax(candidate)
    each = np.exp(wanted) * (wanted - found)
    total: Array = each.sum(axis=-1)
    return np.maximum(total, 0.0)  # rounding can leave -1e-17; NaN stays NaN


def _still(_: int) -> None:
    """Nobody watches."""


def compare_logits(
    reference: LogitsOf, candidate: LogitsOf, texts: Sequence[Sequence[int]], advance: Advance = _still
) -> LogitsComparison:
    """Both models over all texts. Nothing of a text is kept but a few numbers for each token."""
    divergences, same, wanted, found = [], 0, [], []
    for ids in texts:
        one, other = reference(ids), candidate(ids)
        divergences.append(divergence(one, other))
        same += int((one.argmax(axis=-1) == other.argmax(axis=-1)).sum())
        wanted.append(surprises(one, ids))
        found.append(surprises(other, ids))
        advance(1)
    every = np.concatenate(divergences) if divergences else np.full(1, np.nan)
    return LogitsComparison(
        texts=len(texts),
        tokens=sum(map(len, texts)),
        kl_mean=float(every.mean()),
        kl_p99=float(np.quantile(every, 0.99)),
        kl_max=float(every.max()),
        top1_agreement=same / len(every),
        perplexity_reference=pooled(wanted).value,
        perplexity_candidate=pooled(found).value,
    )
