"""FP8 checkpoints from wide ones: calibrated, rounded and written as ModelOpt writes them."""

from __future__ import annotations

from .quantize import QuantizeResult, quantize

__all__ = ["QuantizeResult", "quantize"]
