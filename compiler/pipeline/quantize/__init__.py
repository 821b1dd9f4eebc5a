"""Quantization of checkpoints to FP8: calibrated, rounded, and written in ModelOpt's format."""

from __future__ import annotations

from .quantize import QuantizeResult, quantize

__all__ = ["QuantizeResult", "quantize"]
