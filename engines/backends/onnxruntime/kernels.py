"""The CPU kernels of an engine: its library if it works on this machine, otherwise a log message."""

from __future__ import annotations

import logging
from pathlib import Path

from ....plugins.cpu import INDEX, LIBRARY, SWITCH, is_off
from ....plugins.errors import EnvironmentProblem
from ...folder.manifest import Manifest

KERNELS = "plugins"  # folder of compiled kernels inside the engine folder
_IN_THEIR_PLACE = "; using standard operators instead, which are slower"
_log = logging.getLogger(__name__)


def library_of(folder: Path, manifest: Manifest) -> Path | None:
    """Return the kernel library for sessions to register, or None if the engine has none or it does not work here.

    With the ONNX Runtime version of the build, the library is used without a test; with another version it is tested
    again. If it fails the test, or ``$PEAGLE_CPU_KERNELS`` disables it, a warning is logged and standard operators are
    used. Raises ``EnvironmentProblem`` for a library that was changed after the build, or that needs instructions this
    CPU lacks.
    """
    if f"{KERNELS}/{INDEX}" not in manifest.files:
        return None
    if is_off():
        _log.warning("%s is off: the CPU kernels of %s are not loaded%s", SWITCH, folder, _IN_THEIR_PLACE)
        return None
    # Imported late: slow, and most engines need no compiler.
    from ....plugins.cpu.compile import machine_name
    from ....plugins.cpu.pack import read_pack
    from ....plugins.cpu.self_test import instructions_of, open_library, try_library

    kernels = read_pack(folder / KERNELS)
    path = folder / KERNELS / LIBRARY
    try:
        if kernels.machine != machine_name():
            raise EnvironmentProblem(
                f"the CPU kernels of {folder} were built for {kernels.machine}, but this machine is {machine_name()}",
                fix="rebuild the engine on this machine",
            )
        if not was_tested(manifest):
            try_library(path)
        open_library(path)
    except EnvironmentProblem as problem:
        why = f" ({problem.why})" if problem.why else ""
        _log.warning("%s%s%s", problem.what, why, _IN_THEIR_PLACE)
        return None
    instructions_of(path)
    return path


def was_tested(manifest: Manifest) -> bool:
    """Return True if the build tested the kernels with the installed version of ONNX Runtime."""
    import onnxruntime

    return manifest.backend.versions.get(manifest.backend.name) == str(onnxruntime.__version__)
