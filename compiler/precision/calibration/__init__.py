"""Calibration: how large the numbers get that a quantised target has to hold, measured one layer at a time."""

from __future__ import annotations

from .calibrate import Settings, calibrate
from .dataset import FOR_PLANS, SampleLimits, Samples, bundled, default_limits, read_jsonl
from .encoder import Encoder
from .range_methods import Max, Method, Mse, Percentile
from .saved_ranges import Scales

__all__ = [
    "FOR_PLANS",
    "Encoder",
    "Max",
    "Method",
    "Mse",
    "Percentile",
    "SampleLimits",
    "Samples",
    "Scales",
    "Settings",
    "bundled",
    "calibrate",
    "default_limits",
    "read_jsonl",
]
