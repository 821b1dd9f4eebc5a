"""The project's ops as ONNX Runtime custom ops for CPUs: from each op's ``kernel.cpp`` to a tested shared library."""

from __future__ import annotations

from .. import switches

INDEX = "cpu_kernels.json"  # file name of a pack's index
LIBRARY = "cpu_kernels.so"
INSTRUCTIONS = "PEAGLE_CPU_INSTRUCTIONS"  # names the instruction set of the kernels, by default the machine's best
SWITCH = "PEAGLE_CPU_KERNELS"  # allows or forbids an engine's CPU machine code in this process


def is_off() -> bool:
    """Return True if ``$PEAGLE_CPU_KERNELS`` is ``off``, which disables the CPU kernels of engines.

    Raises ``EnvironmentProblem`` for any value other than ``on`` and ``off``, so that a typo never leaves machine code
    on.
    """
    return switches.is_off(SWITCH, "the valid values are on and off; off disables the compiled kernels of engines")
