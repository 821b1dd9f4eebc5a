"""Drafters: their specs, read from config and tensor shapes, checked against the target, and their graphs."""

from __future__ import annotations

from .drafter_config import called_autoregressive, stating, unknown_architectures
from .drafter_spec import DrafterSpec
from .read_drafter import read_drafter
from .tap_ids import TAPS, doubts_of_taps
from .vocabulary import check_vocabulary

__all__ = [
    "TAPS",
    "DrafterSpec",
    "called_autoregressive",
    "check_vocabulary",
    "doubts_of_taps",
    "read_drafter",
    "stating",
    "unknown_architectures",
]
