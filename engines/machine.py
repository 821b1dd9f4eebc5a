"""What this machine has for an engine: threads and memory."""

from __future__ import annotations

import math
import os
from pathlib import Path

_ANYWHERE = 64  # threads that every machine may be asked for, so that a script need not know on which it runs
_CGROUPS = ("memory.max", "memory/memory.limit_in_bytes")  # of version 2 and version 1


def most_threads() -> int:
    """Return how many threads may be asked for: more than four a core are a slip of the pen, and take memory."""
    return max(4 * (os.cpu_count() or 1), _ANYWHERE)


def memory_bytes(group: Path = Path("/sys/fs/cgroup")) -> float:
    """Return the bytes of memory of this machine, or of its container if that is less; inf where nobody says."""
    try:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on Windows
        pages = 0
    return min(pages if pages > 0 else math.inf, *(_limit(group / name) for name in _CGROUPS))


def _limit(path: Path) -> float:
    try:
        return float(int(path.read_text()))
    except (OSError, ValueError):  # no container, or "max"
        return math.inf
