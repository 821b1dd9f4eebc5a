"""The CPU kernels of an engine: its library where it works here, and where it does not, a line that says so."""

from __future__ import annotations

import logging
from pathlib import Path

from ....plugins.cpu import INDEX, LIBRARY, SWITCH, is_off
from ....plugins.errors import EnvironmentProblem
from ...folder.manifest import Manifest

KERNELS = "plugins"  # the engine folder's pack of compiled kernels
_IN_THEIR_PLACE = ": standard operators run in their place, more slowly"
_log = logging.getLogger(__name__)


def library_of(folder: Path, manifest: Manifest) -> Path | None:
    """The library that sessions are to register; None where the engine has none, or none that works here.

    With the ONNX Runtime that it was tried with when the engine was built it is used as it is, with another one it is
    tried once more. One that does not work, or that ``$PEAGLE_CPU_KERNELS`` keeps from being loaded, is logged, and
    what it would do is done by standard operators. Raises
    ``EnvironmentProblem`` for one that is not the file that was built, and for instructions that are not there.
    """
    if f"{KERNELS}/{INDEX}" not in manifest.files:
        return None
    if is_off():
        _log.warning("%s is off: the CPU kernels of %s are not loaded%s", SWITCH, folder, _IN_THEIR_PLACE)
        return None
    # Other engines have none, and what compiles them takes a while to import.
    from ....plugins.cpu.compile import machine_name
    from ....plugins.cpu.pack import read_pack
    from ....plugins.cpu.self_test import instructions_of, open_library, try_library

    kernels = read_pack(folder / KERNELS)
    path = folder / KERNELS / LIBRARY
    try:
        if kernels.machine != machine_name():
            raise EnvironmentProblem(
                f"the CPU kernels of {folder} are for {kernels.machine}, this is {machine_name()}",
                fix="rebuild the engine on this machine",
            )
        if not _was_tried(manifest):
            try_library(path)
        open_library(path)
    except EnvironmentProblem as problem:
        why = f" ({problem.why})" if problem.why else ""
        _log.warning("%s%s%s", problem.what, why, _IN_THEIR_PLACE)
        return None
    instructions_of(path)
    return path


def _was_tried(manifest: Manifest) -> bool:
    """Whether the build tried the kernels with the version of ONNX Runtime that is installed."""
    import onnxruntime

    return manifest.backend.versions.get(manifest.backend.name) == str(onnxruntime.__version__)
