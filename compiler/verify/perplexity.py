"""Perplexity: how surprised a target is by text that it did not write."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
LogitsOf = Callable[[Sequence[int]], Array]


@dataclass(frozen=True)
class Perplexity:
    """``mean_nll``: nats per predicted token; ``tokens``: how many were predicted."""

    mean_nll: float
    tokens: int

    @property
    def value(self) -> float:
        """e to the mean; infinite where that overflows, NaN where nothing was predicted or a logit is not a number."""
        if math.isnan(self.mean_nll):
            return math.nan
        return math.exp(self.mean_nll) if self.mean_nll < 700 else math.inf


def perplexity(logits_of: LogitsOf, texts: Sequence[Sequence[int]]) -> Perplexity:
    """Of all texts together. ``logits_of(ids)`` gives f32 [len, V]: what follows each of ``ids``.

    The first token of each text is given, not predicted.
    """
    each = [surprises(logits_of(ids), ids) for ids in texts if len(ids) > 1]
    return pooled(each)


def pooled(surprises: Sequence[Array]) -> Perplexity:
    """Of the predictions of several texts; every token weighs the same."""
    tokens = sum(map(len, surprises))
    total = sum(float(each.sum()) for each in surprises)
    return Perplexity(total / tokens if tokens else math.nan, tokens)


def surprises(logits: Array, ids: Sequence[int]) -> Array:
    """Negative log-likelihood of ``ids[1:]``, float64 [len - 1], from ``logits`` [len, V]."""
    following = np.asarray(ids[1:], np.int64)
    found: Array = -log_softmax(logits[: len(following)])[np.arange(len(following)), following]
    return found


def log_softmax(logits: Array) -> Array:
    """Along the last axis, float64."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return wide
