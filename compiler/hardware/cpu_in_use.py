"""Cache keys of measurements on this machine's CPU: all that they depend on, except the engine."""

from __future__ import annotations

import os
import platform

from ...plugins.cpu import INSTRUCTIONS, SWITCH
from .processors import processors


def measured_on() -> list[object]:
    """Return what times depend on: the machine, the number of usable CPUs, and the kernels."""
    return [*computed_on(), processors()]


def computed_on() -> list[object]:
    """Return what numbers depend on: the machine, and the environment variables that select kernels."""
    return [platform.node(), *(os.environ.get(name, "") for name in (SWITCH, INSTRUCTIONS))]
