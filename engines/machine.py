"""Resources of this machine: threads and memory."""

from __future__ import annotations

import math
import os
from pathlib import Path

_ANYWHERE = 64  # thread count accepted on every machine, so that scripts are portable
_CGROUPS = ("memory.max", "memory/memory.limit_in_bytes")  # cgroup version 2 and version 1


def max_threads() -> int:
    """Return the maximum thread count: more than four per core are probably a mistake, and take memory."""
    return max(4 * (os.cpu_count() or 1), _ANYWHERE)


def memory_bytes(group: Path = Path("/sys/fs/cgroup")) -> float:
    """Return the memory of this machine, or of its container if that is less, in bytes; inf if unknown."""
    try:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows
        pages = 0
    return min(pages if pages > 0 else math.inf, *(_limit(group / name) for name in _CGROUPS))


def _limit(path: Path) -> float:
    try:
        return float(int(path.read_text()))
    except (OSError, ValueError):  # not in a container, or "max"
        return math.inf
