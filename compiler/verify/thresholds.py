"""What each precision may cost, against the same pair in FP32.

Perplexity can fall by chance while a model changes; the divergence of the logits cannot, so it has a limit as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Relative increase of perplexity, mean divergence of the logits in nats, relative loss of acceptance length."""

    perplexity_increase: float
    kl_mean: float
    acceptance_drop: float


LIMITS: Mapping[str, Limits] = {
    "fp32": Limits(0.001, 0.001, 0.03),
    "fp16": Limits(0.005, 0.01, 0.03),
    "bf16": Limits(0.005, 0.02, 0.03),
    "fp8": Limits(0.01, 0.05, 0.03),
    "mxfp8": Limits(0.01, 0.05, 0.03),
    "int8": Limits(0.02, 0.05, 0.03),
    "int4": Limits(0.05, 0.15, 0.05),
}
