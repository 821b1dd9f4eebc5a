"""CPU kernels of an engine, as kept stages: compiled for this machine and tested with its ONNX Runtime."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ...graphs.lowering import ORT, Lowering
from ...plugins.errors import BuildError, EnvironmentProblem
from ..request.build_platform import BuildPlatform, costs_without_kernels
from ..store.cache_folder import UntrustedCache, require_trusted
from ..store.stages import Stage, StageStore
from .shared_steps import PipelineRun

if TYPE_CHECKING:
    from ...plugins.cpu.compile import CpuLibrary


@dataclass(frozen=True)
class CpuKernels:
    """The stage of the kernel library, None if there is none, and the ``lowering`` of the graphs.

    ``warnings`` give the reason for a missing library, and its cost.
    """

    stage: Stage | None
    lowering: Lowering
    warnings: list[str] = field(default_factory=list)


def cpu_kernels(run: PipelineRun, platform: BuildPlatform, *, is_asked: bool) -> CpuKernels:
    """Compile and test the kernels, if the platform's lowering uses them.

    If that fails, the graphs use ONNX Runtime's own kernels. A lowering that was requested (``is_asked``) is kept;
    ONNX Runtime then executes the function bodies of the custom nodes.
    """
    if not platform.lowering.packs:
        return CpuKernels(None, platform.lowering, [platform.missing] if platform.missing else [])
    with run.phases("kernels") as record:
        try:
            stage = _tested(run)
        except UntrustedCache:
            raise
        except (EnvironmentProblem, BuildError) as error:
            problem = f"{error.what}: {error.why}" if error.why else error.what
            if not is_asked:
                return CpuKernels(None, ORT, [costs_without_kernels(problem, error.fix)])
            warning = f"the engine has no CPU kernels, so it will be slow: {problem}; {error.fix}"
            return CpuKernels(None, platform.lowering, [warning])
        record["reused"] = stage.reused
    return CpuKernels(stage, platform.lowering)


def compiled_library(store: StageStore) -> Stage:
    """Return the pack of kernels, compiled once for each source, machine and set of compilers, for all builds.

    Raises the errors of ``compile_library``.
    """
    from ...plugins.cpu.compile import compile_library, find_compilers, machine_name
    from ...plugins.cpu.pack import write_pack
    from ...plugins.cpu.sources import digest

    def make(folder: Path) -> None:
        with store.progress.step("compile kernels"):
            write_pack(folder, compile_library())

    compilers = [compiler.identity for compiler in find_compilers()]
    return store.run("cpu-library", [digest(), machine_name(), compilers], make, by_content=True)


def is_compiled_locally(store: StageStore, library: CpuLibrary) -> bool:
    """Return True if the store has compiled this very library.

    Raises ``EnvironmentProblem`` if other users could have written one of the store's libraries.
    """
    from ...plugins.cpu import INDEX, LIBRARY
    from ...plugins.cpu.pack import read_pack

    for folder in (store.root / "cpu-library").glob("*"):
        require_trusted(store.root, "cpu-library", folder.name)
        if all((folder / name).is_file() for name in (INDEX, LIBRARY)):
            with suppress(EnvironmentProblem):  # a stage that is still being written
                if read_pack(folder).code == library.code:
                    return True
    return False


def _tested(run: PipelineRun) -> Stage:
    import onnxruntime

    from ...plugins.cpu import INDEX, INSTRUCTIONS, LIBRARY
    from ...plugins.cpu.self_test import try_library

    library = compiled_library(run.store)

    def make(folder: Path) -> None:
        for name in (LIBRARY, INDEX):
            shutil.copyfile(library.path / name, folder / name)
        with run.progress.step("try kernels"):
            try_library(folder / LIBRARY)

    key = [library.path.name, str(onnxruntime.__version__), os.environ.get(INSTRUCTIONS, "")]
    return run.store.run("cpu-kernels", key, make)
