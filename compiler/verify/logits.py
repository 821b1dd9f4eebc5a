"""Compare two models on the same texts: KL divergence of the logits, top-1 agreement, perplexity, error per layer.

Only a few numbers per token are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ..console.progress import Advance

Array = np.ndarray[Any, Any]
LogitsOf = Callable[[Sequence[int]], Array]  # token ids -> f32 [len, V]: logits after each token
StreamsOf = Callable[[Sequence[int]], Array]  # token ids -> f32 [len, L, H]: input of each layer
_OVERFLOWS = 700  # exp of this is close to the largest float64
_ROWS = 64  # rows per step: in float64, a row of a large vocabulary takes a megabyte


@dataclass(frozen=True)
class LogitsComparison:
    """Comparison of two models over all tokens of ``texts`` texts; both get the same tokens.

    ``kl_*``: KL(reference || candidate) in nats. ``top1_agreement``: share of positions at which both models rank the
    same token first. ``perplexity_error``: standard error of ``perplexity_increase``, from the differences per token.
    """

    texts: int
    tokens: int
    kl_mean: float
    kl_p99: float
    kl_max: float
    top1_agreement: float
    perplexity_reference: float
    perplexity_candidate: float
    perplexity_error: float = math.nan

    @property
    def perplexity_increase(self) -> float:
        """Relative increase of the candidate's perplexity over the reference's."""
        return self.perplexity_candidate / self.perplexity_reference - 1


@dataclass(frozen=True)
class Perplexity:
    """Perplexity of a model. ``mean_nll``: nats per predicted token; ``tokens``: number of predicted tokens."""

    mean_nll: float
    tokens: int

    @property
    def value(self) -> float:
        """The exponential of ``mean_nll``: infinite on overflow, NaN if there are no predictions or a logit is NaN."""
        if math.isnan(self.mean_nll):
            return math.nan
        return math.exp(self.mean_nll) if self.mean_nll < _OVERFLOWS else math.inf


@dataclass(frozen=True)
class LayerError:
    """Relative L2 distance of the inputs of ``layer``, over all tokens."""

    layer: int
    error: float


def _no_progress(_: int) -> None:
    """Report no progress."""


class LogitsTally:
    """Accumulates the comparison of two models text by text, so one reference pass can serve several candidates."""

    def __init__(self) -> None:
        self._texts = self._agreeing = 0
        self._divergences: list[Array] = []
        self._reference_nll: list[Array] = []
        self._candidate_nll: list[Array] = []

    def add(self, reference: Array, candidate: Array, ids: Sequence[int]) -> None:
        """Add the logits [len, V] of both models for one text."""
        for at in range(0, len(ids), _ROWS):
            rows, following = slice(at, at + _ROWS), ids[at + 1 : at + _ROWS + 1]
            one, other = log_softmax(reference[rows]), log_softmax(candidate[rows])
            self._divergences.append(divergence(one, other))
            self._agreeing += int((reference[rows].argmax(axis=-1) == candidate[rows].argmax(axis=-1)).sum())
            self._reference_nll.append(_nll(one, following))
            self._candidate_nll.append(_nll(other, following))
        self._texts += 1

    def comparison(self) -> LogitsComparison:
        """Return the comparison so far; its numbers are NaN if there are no tokens."""
        every = np.concatenate(self._divergences) if self._divergences else np.full(1, np.nan)
        reference, candidate = pooled(self._reference_nll), pooled(self._candidate_nll)
        return LogitsComparison(
            texts=self._texts,
            tokens=sum(map(len, self._divergences)),
            kl_mean=float(every.mean()),
            kl_p99=float(np.quantile(every, 0.99)),
            kl_max=float(every.max()),
            top1_agreement=self._agreeing / len(every),
            perplexity_reference=reference.value,
            perplexity_candidate=candidate.value,
            perplexity_error=candidate.value / reference.value * self._error(reference.tokens),
        )

    def _error(self, tokens: int) -> float:
        """Return the standard error of the mean difference in NLL, the logarithm of the perplexities' ratio."""
        if tokens < 2:
            return math.nan
        differences = np.concatenate(self._candidate_nll) - np.concatenate(self._reference_nll)
        return float(differences.std(ddof=1) / math.sqrt(tokens))


def compare_logits(
    reference: LogitsOf, candidate: LogitsOf, texts: Sequence[Sequence[int]], advance: Advance = _no_progress
) -> LogitsComparison:
    """Run both models over all texts and compare their logits after each token."""
    tally = LogitsTally()
    for ids in texts:
        tally.add(reference(ids), candidate(ids), ids)
        advance(1)
    return tally.comparison()


def compare_layers(
    reference: StreamsOf, candidate: StreamsOf, texts: Sequence[Sequence[int]], advance: Advance
) -> tuple[LayerError, ...]:
    """Run both models over all texts and return the relative distance of their hidden states, by layer."""
    distance, length = np.zeros(1), np.zeros(1)
    for ids in texts:
        expected, found = reference(ids).astype(np.float64), candidate(ids).astype(np.float64)
        distance = distance + ((found - expected) ** 2).sum(axis=(0, 2))
        length = length + (expected**2).sum(axis=(0, 2))
        advance(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        errors = np.sqrt(distance / length)
    return tuple(LayerError(layer, float(error)) for layer, error in enumerate(errors))


def worst_layer(errors: Sequence[LayerError]) -> int:
    """Return the layer whose output has the largest increase in error over its input.

    The last layer is not considered, because its output is only seen in the logits.
    """
    gains = [after.error - before.error for before, after in pairwise(errors)]
    return int(np.argmax(gains)) if gains else 0


def divergence(one: Array, other: Array) -> Array:
    """KL(one || other) of each row, float64 [n] from ``log_softmax`` [n, V]; NaN where a logit is not a number."""
    total: Array = (np.exp(one) * (one - other)).sum(axis=-1)
    return np.maximum(total, 0.0)  # rounding can leave -1e-17; NaN stays NaN


def pooled(nll: Sequence[Array]) -> Perplexity:
    """Return the perplexity over several texts; every token has the same weight."""
    tokens = sum(map(len, nll))
    total = sum(float(text.sum()) for text in nll)
    return Perplexity(total / tokens if tokens else math.nan, tokens)


def _nll(likelihoods: Array, following: Sequence[int]) -> Array:
    """Return the negative log-likelihood of the next tokens, float64 [n], from ``log_softmax`` [n or n + 1, V]."""
    likelihood: Array = likelihoods[np.arange(len(following)), np.asarray(following, np.int64)]
    return -likelihood


def log_softmax(logits: Array) -> Array:
    """Logarithm of the softmax along the last axis, float64."""
    values = logits.astype(np.float64)
    values -= values.max(axis=-1, keepdims=True)
    values -= np.log(np.exp(values).sum(axis=-1, keepdims=True))
    return values
