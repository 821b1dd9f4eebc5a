"""Comparison of float arrays bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np


def same_bits(ours: Any, theirs: Any) -> None:
    """Every bit but those of a NaN."""
    assert ours.shape == theirs.shape
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))
    there = ~np.isnan(theirs)
    np.testing.assert_array_equal(ours[there].view(f"i{ours.itemsize}"), theirs[there].view(f"i{ours.itemsize}"))
