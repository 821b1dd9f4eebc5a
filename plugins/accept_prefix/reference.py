"""The oracle of ``AcceptPrefix``, one row, one column, one token at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

LARGEST_UNIFORM = np.float32(1 - 2**-24)  # the largest float32 below 1; at 1 no token would be left to draw
LARGEST_TOLERANCE = np.float32(0.999999)  # so that a token of probability 0 is never accepted


def kept_floor(z: Array, top_k: int, top_p: float, min_p: float) -> np.float32:
    """The smallest scaled logit that survives min-p, then top-k, then top-p. z: float32 [V]."""
    best = z.max()
    with np.errstate(divide="ignore"):
        floor = best + np.log(np.clip(np.float32(min_p), np.float32(0), np.float32(1)))
    descending = np.sort(z)[::-1]
    if 0 < top_k < len(z):
        floor = max(floor, descending[top_k - 1])
    if top_p < 1:
        weights = np.exp(descending - best).astype(np.float64)
        goal = weights[descending >= floor].sum() * top_p
        mass, least = 0.0, best
        for value, weight in zip(descending, weights, strict=True):
            if value < floor or mass >= goal:
                break
            mass, least = mass + weight, value
        floor = max(floor, least)
    return np.float32(floor)


def draw(logits: Array, uniform: float, temperature: float, top_k: int, top_p: float, min_p: float) -> int:
    """The token of one emission column: arg-max, or the inverse-CDF sample in vocabulary order. logits: float32 [V].

    Vocabulary order, so that a GPU kernel needs no sort; float64 sums, so that 200 000 weights add up alike everywhere.
    """
    if temperature <= 0:
        return int(np.argmax(logits))
    z = logits / np.float32(temperature)
    floor = kept_floor(z, top_k, top_p, min_p)
    cumulative = np.cumsum(np.where(z >= floor, np.exp(z - z.max()), 0), dtype=np.float64)
    goal = np.float64(np.clip(np.float32(uniform), np.float32(0), LARGEST_UNIFORM)) * cumulative[-1]
    return int(np.argmax(cumulative > goal))


def tolerable(logits: Array, draft: int, temperature: float, tolerance: float) -> bool:
    """Whether the lossy policy takes this draft: p(draft) >= (1 - tolerance) * max p, before any filter."""
    if tolerance <= 0 or not 0 <= draft < len(logits):
        return False
    z = logits / np.float32(temperature if temperature > 0 else 1)
    return bool(z[draft] >= z.max() + np.log(np.float32(1) - min(np.float32(tolerance), LARGEST_TOLERANCE)))


def accept_prefix(
    logits: Array,
    input_ids: Array,
    window_len: Array,
    draft_len: Array,
    forced_next: Array,
    uniform: Array,
    temperature: Array,
    top_k: Array,
    top_p: Array,
    min_p: Array,
    tolerance: Array,
) -> tuple[Array, Array]:
    """tokens int32 [B, E] and num_tokens int32 [B]; the inputs are those of the op's spec, in its order."""
    batch, columns, _ = logits.shape
    tokens = np.full((batch, columns), -1, np.int32)
    num_tokens = np.zeros(batch, np.int32)
    for b in range(batch):
        window = min(max(int(window_len[b]), 0), input_ids.shape[1])
        if window == 0:
            continue
        if forced_next[b] >= 0:
            tokens[b, 0], num_tokens[b] = forced_next[b], 1
            continue
        drafts = max(min(int(draft_len[b]), columns - 1, window - 1), 0)
        for j in range(drafts + 1):
            column = logits[b, j].astype(np.float32)
            y = draw(column, uniform[b, j], temperature[b], int(top_k[b]), float(top_p[b]), min_p[b])
            tokens[b, j], num_tokens[b] = y, j + 1
            if j == drafts:
                break
            draft = int(input_ids[b, window - drafts + j])
            if draft != y and not tolerable(column, draft, temperature[b], tolerance[b]):
                break
            tokens[b, j] = draft
    return tokens, num_tokens
