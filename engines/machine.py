"""Resources of this machine: threads and memory."""

from __future__ import annotations

import math
import os
from pathlib import Path

from .free_memory import control_groups

_ANYWHERE = 64  # thread count accepted on every machine, so that scripts are portable


def max_threads() -> int:
    """Return the maximum thread count: more than four per core are probably a mistake, and take memory."""
    return max(4 * (os.cpu_count() or 1), _ANYWHERE)


def memory_bytes(root: Path = Path("/")) -> float:
    """Return the memory of this machine, or the lowest limit of a control group if that is less; inf if unknown.

    Containers and SLURM jobs are control groups, which may be nested. ``root`` is the folder with ``/proc`` and
    ``/sys``.
    """
    try:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows
        pages = 0
    limits = (_limit(group / files.limit) for group, files in control_groups(root))
    return min(pages if pages > 0 else math.inf, *limits)


def _limit(path: Path) -> float:
    try:
        return float(int(path.read_text()))
    except (OSError, ValueError):  # not visible, or "max"
        return math.inf
