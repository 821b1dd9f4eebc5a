"""NumPy reference of ``AcceptPrefix``: one row, one column, one token at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SCRAMBLE = np.uint32(0x45D9F3B)  # T. Mueller's integer hash; below 2**31, so an int64 product never overflows
LARGEST_BELOW_1 = np.float32(1 - 2**-24)
LARGEST_TOLERANCE = np.float32(0.999999)  # a token of probability 0 is never accepted


def logit_floor(z: Array, top_k: int, top_p: float, min_p: float) -> np.float32:
    """Return the smallest scaled logit that survives min-p, then top-k, then top-p. z: float32 [V]."""
    best = z.max()
    with np.errstate(divide="ignore"):
        floor = best + np.log(np.clip(np.float32(min_p), np.float32(0), np.float32(1)))
    descending = np.sort(z)[::-1]
    if 0 < top_k < len(z):
        floor = max(floor, descending[top_k - 1])
    if top_p < 1:
        weights = np.exp(descending - best).astype(np.float64)
        goal = weights[descending >= floor].sum() * top_p
        mass, smallest = 0.0, best
        for value, weight in zip(descending, weights, strict=True):
            if value < floor or mass >= goal:
                break
            mass, smallest = mass + weight, value
        floor = max(floor, smallest)
    return np.float32(floor)


def scramble(x: Array) -> Array:
    """Return a 32-bit hash in which every output bit depends on every input bit. x: uint32."""
    for _ in range(2):
        x = ((x >> np.uint32(16)) ^ x) * SCRAMBLE
    return (x >> np.uint32(16)) ^ x


def race_noise(uniform: float, vocab: int) -> Array:
    """Return standard Gumbel noise, float32 [V]: depends only on the row's number (24 bits) and the token id."""
    inside = np.clip(np.float32(uniform), np.float32(0), LARGEST_BELOW_1)
    key = scramble(np.array([inside * np.float32(2**24)]).astype(np.uint32))
    hashed = scramble(scramble(np.arange(1, vocab + 1, dtype=np.uint32)) ^ key)
    t = np.clip(hashed.astype(np.float32) * np.float32(2**-32), np.float32(2**-33), LARGEST_BELOW_1)
    return np.asarray(-np.log(-np.log(t)))


def draw(logits: Array, uniform: float, temperature: float, top_k: int, top_p: float, min_p: float) -> int:
    """Draw the token of one emission column: arg-max of the logits, or of logits / temperature + noise over kept ids.

    Gumbel-max instead of inverting a distribution function: a verify pass and a plain pass differ in the last bits of
    their logits. A distribution function has one edge per token where such a difference can change the draw; Gumbel-max
    only has the gap between its two best scores. It also needs one pass over the logits and no sum. logits: float32
    [V].
    """
    if temperature <= 0:
        return int(np.argmax(logits))
    z = logits / np.float32(temperature)
    floor = logit_floor(z, top_k, top_p, min_p)
    return int(np.argmax(np.where(z >= floor, z + race_noise(uniform, len(z)), -np.inf)))


def is_within_tolerance(logits: Array, draft: int, temperature: float, tolerance: float) -> bool:
    """Return True if the lossy policy accepts this draft: p(draft) >= (1 - tolerance) * max p, before any filter."""
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
    """Return tokens int32 [B, E] and num_tokens int32 [B]; the inputs are in spec order."""
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
            if draft != y and not is_within_tolerance(column, draft, temperature[b], tolerance[b]):
                break
            tokens[b, j] = draft
    return tokens, num_tokens
