"""Collect garbage, and no more of it than a test waits for."""

from __future__ import annotations

import gc
from collections.abc import Callable


def collected(is_gone: Callable[[], bool]) -> bool:
    """Collect until something is gone, the youngest objects first: all of torch's objects take seconds."""
    for generation in range(3):
        if is_gone():
            return True
        gc.collect(generation)
    return is_gone()
