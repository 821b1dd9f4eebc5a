"""Random numbers by seed and absolute position: what makes text independent of batch, K and chunking."""

from __future__ import annotations

import secrets

import numpy as np


def draw_seed() -> int:
    """Draw a fresh 63-bit seed."""
    return secrets.randbits(63)


def uniform_stream(seed: int, length: int) -> np.ndarray:
    """Numbers in [0, 1), f32 ``[length]``; entry p decides the token at absolute position p.

    Philox4x64 keyed by the seed, 24 bits per number: the same in every process and for every batch, K and chunking,
    which is what makes text independent of speculation.
    """
    raw = np.random.Philox(key=seed & (2**64 - 1)).random_raw(length)
    return ((raw >> np.uint64(40)).astype(np.float32)) * np.float32(2.0**-24)
