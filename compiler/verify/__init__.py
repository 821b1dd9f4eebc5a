"""Verify an engine: speculation changes no token, logits match torch, and the accuracy cost is within its limits."""

from __future__ import annotations

from .losslessness import Divergence, Losslessness
from .precision_cost import Precision
from .verify_engine import (
    DEFAULT_K,
    FILE_NAME,
    NEED_CHECKPOINTS,
    PARTS,
    Verification,
    require_parts,
    verify,
    verify_elsewhere,
)

__all__ = [
    "DEFAULT_K",
    "FILE_NAME",
    "NEED_CHECKPOINTS",
    "PARTS",
    "Divergence",
    "Losslessness",
    "Precision",
    "Verification",
    "require_parts",
    "verify",
    "verify_elsewhere",
]
