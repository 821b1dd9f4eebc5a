"""Sampling parameters: how a request wants its tokens chosen, and the same as inputs of the graph."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...plugins.errors import UsageError
from ...plugins.graph_contract import POLICY, TENSORS


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


def policy_of(params: SamplingParams) -> dict[str, np.ndarray]:
    """The policy inputs of one row, each ``[1]`` in the graph's dtype."""
    return {name: np.array([getattr(params, name)], TENSORS[name].dtype) for name in POLICY}
