"""An FP8 target from an FP8 checkpoint: its weights as they are stored, its inputs as they were calibrated."""

from __future__ import annotations

from .proof import Narrowed
from .weights import Fp8Weights

__all__ = ["Fp8Weights", "Narrowed"]
