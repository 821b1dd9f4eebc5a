"""Random numbers by seed and absolute position, so that text is independent of batch, K and chunking."""

from __future__ import annotations

import secrets

import numpy as np


def draw_seed() -> int:
    """Return a random 63-bit seed."""
    return secrets.randbits(63)


def uniform_stream(seed: int, length: int) -> np.ndarray:
    """Return numbers in [0, 1), f32 ``[length]``; entry p decides the token at absolute position p.

    Philox4x64 keyed by the seed, 24 bits per number. It is the same in every process and for every batch, K and
    chunking, so the text does not depend on speculation.
    """
    raw = np.random.Philox(key=seed & (2**64 - 1)).random_raw(length)
    return ((raw >> np.uint64(40)).astype(np.float32)) * np.float32(2.0**-24)
