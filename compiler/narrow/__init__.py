"""Weights in narrow types: from a checkpoint that stores them so, or rounded here from a wide one."""

from __future__ import annotations

from .choose import is_whole_fp8, of_drafter, of_target, uncalibrated
from .proof import Narrowed
from .provider import Provider
from .rounded import RoundedHere
from .stored import StoredFp8

__all__ = [
    "Narrowed",
    "Provider",
    "RoundedHere",
    "StoredFp8",
    "is_whole_fp8",
    "of_drafter",
    "of_target",
    "uncalibrated",
]
