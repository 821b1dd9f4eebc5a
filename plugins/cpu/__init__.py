"""Our ops as operators of ONNX Runtime on a CPU: from an op's ``kernel.cpp`` to a shared library that is tested."""

from __future__ import annotations

from .. import switches

INDEX = "cpu_kernels.json"  # the files of a pack
LIBRARY = "cpu_kernels.so"
SWITCH = "PEAGLE_CPU_KERNELS"  # whether the machine code that an engine carries may run in this process


def is_off() -> bool:
    """Whether the CPU kernels of engines are to be left alone: ``$PEAGLE_CPU_KERNELS`` is ``off``.

    ``EnvironmentProblem`` for any other word than ``on``: who switches machine code off must not be misread.
    """
    return switches.is_off(SWITCH, "it is off, where no machine code of an engine may run, or on")
