"""How a request wants its tokens chosen, and the random numbers that choose them."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...plugins.errors import UsageError


@dataclass(frozen=True)
class SamplingParams:
    """Per-request policy; names and meanings as in vLLM.

    ``temperature`` 0 is greedy. ``top_k`` <= 0, ``top_p`` 1 and ``min_p`` 0 are off. ``seed`` None draws one, which the
    result reports. ``stop`` strings end the text and are not part of it. ``tolerance`` > 0 accepts a draft d when
    p(d) >= (1 - tolerance) * max p: a lossy policy, never used unless asked for.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        problems = []
        if self.max_tokens < 1:
            problems.append(f"max_tokens must be 1 or more, not {self.max_tokens}")
        for name, low, high in (("temperature", 0, math.inf), ("min_p", 0, 1), ("tolerance", 0, 1)):
            value = getattr(self, name)
            if not (low <= value <= high and math.isfinite(value)):
                problems.append(f"{name} must be a number from {low} to {high}, not {value}")
        if not 0 < self.top_p <= 1:
            problems.append(f"top_p must be above 0 and at most 1, not {self.top_p}")
        if not isinstance(self.stop, tuple) or not all(self.stop):
            problems.append("stop must be a tuple of strings, none of them empty")
        if problems:
            raise UsageError("; ".join(problems), fix="change the sampling parameters")


# The target graph's policy inputs, one value per row.
POLICY: Mapping[str, np.dtype[Any]] = {
    "temperature": np.dtype(np.float32),
    "top_k": np.dtype(np.int32),
    "top_p": np.dtype(np.float32),
    "min_p": np.dtype(np.float32),
    "tolerance": np.dtype(np.float32),
}


def policy_of(params: SamplingParams) -> dict[str, np.ndarray]:
    """One row's policy inputs, each ``[1]`` in the graph's dtype."""
    return {name: np.array([getattr(params, name)], dtype) for name, dtype in POLICY.items()}


def draw_seed() -> int:
    """A fresh 63-bit seed."""
    return secrets.randbits(63)


def uniform_stream(seed: int, length: int) -> np.ndarray:
    """Numbers in [0, 1), f32 ``[length]``; entry p decides the token at absolute position p.

    Philox4x64 keyed by the seed, 24 bits per number: the same in every process and for every batch, K and chunking,
    which is what makes text independent of speculation.
    """
    raw = np.random.Philox(key=seed & (2**64 - 1)).random_raw(length)
    return ((raw >> np.uint64(40)).astype(np.float32)) * np.float32(2.0**-24)
