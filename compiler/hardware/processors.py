"""The number of processors available to this process, which may be fewer than the machine has."""

from __future__ import annotations

import os


def processors() -> int:
    """Return the number of processors available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
