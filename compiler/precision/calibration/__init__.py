"""Calibration: how large the numbers get that a quantised target has to hold, measured one layer at a time."""

from __future__ import annotations

from .calibrate import Settings, calibrate
from .dataset import Limits, bundled, read_jsonl
from .methods import Max, Method, Mse, Percentile
from .sampleset import Samples
from .scales import Scales
from .text import Encoder

__all__ = [
    "Encoder",
    "Limits",
    "Max",
    "Method",
    "Mse",
    "Percentile",
    "Samples",
    "Scales",
    "Settings",
    "bundled",
    "calibrate",
    "read_jsonl",
]
