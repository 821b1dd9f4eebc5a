"""The CPU kernels of an engine, as a kept stage: compiled for this machine, and tried with its ONNX Runtime."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ...plugins.errors import BuildError, EnvironmentProblem
from ..store.stages import Stage
from .shared_steps import Graphs, PipelineRun


@dataclass(frozen=True)
class CpuKernels:
    """The stage of the library, None where there is none; ``warnings`` then say why, and what that costs."""

    stage: Stage | None
    warnings: list[str] = field(default_factory=list)


def cpu_kernels(run: PipelineRun, graphs: Graphs) -> CpuKernels | None:
    """Compile and try the kernels that the graphs have nodes for; None where the lowering has none of ours.

    A machine that cannot, or where they do not work, has an engine without them: the bodies of the nodes run.
    """
    if not graphs.blueprint.lowering.packs:
        return None
    with run.phases("kernels") as record:
        try:
            stage = _built(run)
        except (EnvironmentProblem, BuildError) as error:
            why = f": {error.why}" if error.why else ""
            return CpuKernels(None, [f"the engine has no CPU kernels, and is slow: {error.what}{why}; {error.fix}"])
        record["reused"] = stage.reused
    return CpuKernels(stage)


def _built(run: PipelineRun) -> Stage:
    import onnxruntime

    from ...plugins.cpu import LIBRARY
    from ...plugins.cpu.compile import compile_library, machine_name
    from ...plugins.cpu.pack import write_pack
    from ...plugins.cpu.self_test import try_library
    from ...plugins.cpu.sources import digest

    def make(folder: Path) -> None:
        with run.progress.step("compile kernels"):
            write_pack(folder, compile_library())
            try_library(folder / LIBRARY)

    return run.store.run("cpu-kernels", [digest(), machine_name(), str(onnxruntime.__version__)], make)
