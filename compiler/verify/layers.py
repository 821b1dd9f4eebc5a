"""How far the residual stream of a narrow target is from the wide one's, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..console.progress import Advance
from .perplexity import Array

StreamsOf = Callable[[Sequence[int]], Array]


@dataclass(frozen=True)
class LayerError:
    """Relative L2 distance of the streams that enter ``layer``, over all tokens."""

    layer: int
    error: float


def compare_layers(
    reference: StreamsOf, candidate: StreamsOf, texts: Sequence[Sequence[int]], advance: Advance
) -> tuple[LayerError, ...]:
    """Both give f32 [len, L, H] for the tokens of a text."""
    distance, length = np.zeros(1), np.zeros(1)
    for ids in texts:
        wide, narrow = reference(ids).astype(np.float64), candidate(ids).astype(np.float64)
        distance = distance + ((narrow - wide) ** 2).sum(axis=(0, 2))
        length = length + (wide**2).sum(axis=(0, 2))
        advance(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        errors = np.sqrt(distance / length)
    return tuple(LayerError(layer, float(error)) for layer, error in enumerate(errors))


def most_added(errors: Sequence[LayerError]) -> int:
    """The layer that adds most to the distance, from the stream that enters it to the one that leaves it.

    The last layer is not seen: what leaves it is in the logits alone.
    """
    gains = [after.error - before.error for before, after in pairwise(errors)]
    return int(np.argmax(gains)) if gains else 0
