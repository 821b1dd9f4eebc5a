"""Cache keys of measurements on this machine's CPU: all that they depend on, except the engine."""

from __future__ import annotations

import os
import platform

from ...plugins.cpu import INSTRUCTIONS, SWITCH


def measured_on() -> list[object]:
    """Return what times depend on: the machine, the number of usable CPUs, and the kernels."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return [*computed_on(), cpus]


def computed_on() -> list[object]:
    """Return what numbers depend on: the machine, and the environment variables that select kernels."""
    return [platform.node(), *(os.environ.get(name, "") for name in (SWITCH, INSTRUCTIONS))]
