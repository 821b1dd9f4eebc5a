"""Opens the backend that a manifest names; heavy imports happen only for the backend in use."""

from __future__ import annotations

from pathlib import Path

from ...plugins.errors import EnvironmentProblem
from ...plugins.tensorrt.products import PRODUCTS
from ..folder.checks import check_runtime
from ..folder.manifest import Manifest
from .base import Backend
from .onnxruntime.backend import OnnxRuntimeBackend
from .profiling import Profiler


def open_backend(
    folder: Path, manifest: Manifest, slots: int, threads: int | None, profiler: Profiler | None = None
) -> Backend:
    """Return a backend that runs the graphs of a folder, with ``slots`` rows; ``threads`` applies to CPUs.

    With a ``profiler``, passes are slower. TensorRT then captures no round, because a CUDA graph reports no layers.
    Raises ``EnvironmentProblem`` for an engine of an unknown backend or another version.
    """
    if manifest.backend.name == "onnxruntime":
        import onnxruntime

        check_runtime(manifest.backend, {"onnxruntime": onnxruntime.__version__})
        return OnnxRuntimeBackend(folder, manifest, num_slots=slots, threads=threads, profiler=profiler)
    if manifest.backend.name in PRODUCTS:
        from .tensorrt import backend as tensorrt

        return tensorrt.load(folder, manifest, manifest.backend.name, slots, profiler)
    raise EnvironmentProblem(
        f"{folder} was built for backend {manifest.backend.name!r}, which is not supported",
        why=f"the supported backends are onnxruntime, {' and '.join(PRODUCTS)}",
        fix="rebuild the engine with one of them as --backend",
    )
