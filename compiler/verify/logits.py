"""Two models on the same texts: divergence of their logits, agreement, perplexity, and how far their layers are apart.

Nothing of a text is kept but a few numbers for each token.
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
LogitsOf = Callable[[Sequence[int]], Array]  # token ids -> f32 [len, V]: what follows each of them
StreamsOf = Callable[[Sequence[int]], Array]  # token ids -> f32 [len, L, H]: what enters each layer
_OVERFLOWS = 700  # e to this is the largest power that float64 has room for, nearly
_ROWS = 64  # looked at together: in float64 a row of a large vocabulary is a megabyte


@dataclass(frozen=True)
class LogitsComparison:
    """Over every token of ``texts`` texts, each model fed the same tokens.

    ``kl_*``: nats, of the candidate's distribution from the reference's. ``top1_agreement``: the share of tokens after
    which both hold the same one most likely. ``perplexity_error``: the standard error of ``perplexity_increase``, from
    the differences token by token.
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
        """The candidate's perplexity relative to the reference's."""
        return self.perplexity_candidate / self.perplexity_reference - 1


@dataclass(frozen=True)
class Perplexity:
    """How surprised a model is by text. ``mean_nll``: nats per predicted token; ``tokens``: how many were predicted."""

    mean_nll: float
    tokens: int

    @property
    def value(self) -> float:
        """e to the mean; infinite where that overflows, NaN where nothing was predicted or a logit is not a number."""
        if math.isnan(self.mean_nll):
            return math.nan
        return math.exp(self.mean_nll) if self.mean_nll < _OVERFLOWS else math.inf


@dataclass(frozen=True)
class LayerError:
    """Relative L2 distance of the streams that enter ``layer``, over all tokens."""

    layer: int
    error: float


def _unwatched(_: int) -> None:
    """Report no progress."""


class LogitsTally:
    """What two models say of texts, taken in text by text: one pass of a reference serves several candidates."""

    def __init__(self) -> None:
        self._texts = self._same = 0
        self._divergences: list[Array] = []
        self._of_reference: list[Array] = []
        self._of_candidate: list[Array] = []

    def add(self, reference: Array, candidate: Array, ids: Sequence[int]) -> None:
        """Take in the logits [len, V] of both after every token of a text."""
        for at in range(0, len(ids), _ROWS):
            rows, following = slice(at, at + _ROWS), ids[at + 1 : at + _ROWS + 1]
            one, other = log_softmax(reference[rows]), log_softmax(candidate[rows])
            self._divergences.append(_divergence(one, other))
            self._same += int((reference[rows].argmax(axis=-1) == candidate[rows].argmax(axis=-1)).sum())
            self._of_reference.append(_surprises(one, following))
            self._of_candidate.append(_surprises(other, following))
        self._texts += 1

    def comparison(self) -> LogitsComparison:
        """Return what was found so far; NaN where there was no token."""
        every = np.concatenate(self._divergences) if self._divergences else np.full(1, np.nan)
        reference, candidate = pooled(self._of_reference), pooled(self._of_candidate)
        return LogitsComparison(
            texts=self._texts,
            tokens=sum(map(len, self._divergences)),
            kl_mean=float(every.mean()),
            kl_p99=float(np.quantile(every, 0.99)),
            kl_max=float(every.max()),
            top1_agreement=self._same / len(every),
            perplexity_reference=reference.value,
            perplexity_candidate=candidate.value,
            perplexity_error=candidate.value / reference.value * self._error(reference.tokens),
        )

    def _error(self, tokens: int) -> float:
        """Return the standard error of the mean difference of surprise, the logarithm of the perplexities' ratio."""
        if tokens < 2:
            return math.nan
        differences = np.concatenate(self._of_candidate) - np.concatenate(self._of_reference)
        return float(differences.std(ddof=1) / math.sqrt(tokens))


def compare_logits(
    reference: LogitsOf, candidate: LogitsOf, texts: Sequence[Sequence[int]], advance: Advance = _unwatched
) -> LogitsComparison:
    """Run both models over all texts and compare what they say of each token."""
    tally = LogitsTally()
    for ids in texts:
        tally.add(reference(ids), candidate(ids), ids)
        advance(1)
    return tally.comparison()


def compare_layers(
    reference: StreamsOf, candidate: StreamsOf, texts: Sequence[Sequence[int]], advance: Advance
) -> tuple[LayerError, ...]:
    """Run both models over all texts and return the relative distance of their residual streams, by layer."""
    distance, length = np.zeros(1), np.zeros(1)
    for ids in texts:
        wide, quantized = reference(ids).astype(np.float64), candidate(ids).astype(np.float64)
        distance = distance + ((quantized - wide) ** 2).sum(axis=(0, 2))
        length = length + (wide**2).sum(axis=(0, 2))
        advance(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        errors = np.sqrt(distance / length)
    return tuple(LayerError(layer, float(error)) for layer, error in enumerate(errors))


def most_added(errors: Sequence[LayerError]) -> int:
    """Return the layer that adds most to the distance, from the stream that enters it to the one that leaves it.

    The last layer is not seen: what leaves it is in the logits alone.
    """
    gains = [after.error - before.error for before, after in pairwise(errors)]
    return int(np.argmax(gains)) if gains else 0


def divergence(reference: Array, candidate: Array) -> Array:
    """KL(reference || candidate) of each row, float64 [n] from logits [n, V]; NaN where a logit is not a number."""
    return _divergence(log_softmax(reference), log_softmax(candidate))


def _divergence(one: Array, other: Array) -> Array:
    total: Array = (np.exp(one) * (one - other)).sum(axis=-1)
    return np.maximum(total, 0.0)  # rounding can leave -1e-17; NaN stays NaN


def pooled(surprises: Sequence[Array]) -> Perplexity:
    """Return the perplexity of the predictions of several texts; every token weighs the same."""
    tokens = sum(map(len, surprises))
    total = sum(float(text.sum()) for text in surprises)
    return Perplexity(total / tokens if tokens else math.nan, tokens)


def _surprises(likelihoods: Array, following: Sequence[int]) -> Array:
    """Negative log-likelihood of the tokens that followed, float64 [n], from ``log_softmax`` [n or n + 1, V]."""
    likelihood: Array = likelihoods[np.arange(len(following)), np.asarray(following, np.int64)]
    return -likelihood


def log_softmax(logits: Array) -> Array:
    """Logarithm of the softmax along the last axis, float64."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return wide
