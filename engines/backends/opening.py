"""From what a manifest says to the backend that runs it; what is heavy is imported for those who need it."""

from __future__ import annotations

from pathlib import Path

from ...plugins.errors import EnvironmentProblem
from ...plugins.tensorrt.import_tensorrt import Product
from ..folder.checks import check_runtime
from ..folder.manifest import Manifest
from .base import Backend
from .onnxruntime.backend import OnnxRuntimeBackend


def open_backend(folder: Path, manifest: Manifest, slots: int, threads: int | None) -> Backend:
    """Return what runs the graphs of a folder, over ``slots`` rows; ``threads`` are those of a CPU.

    Raises ``EnvironmentProblem`` for an engine of another backend or version.
    """
    if manifest.backend.name == "onnxruntime":
        import onnxruntime

        check_runtime(manifest.backend, {"onnxruntime": onnxruntime.__version__})
        return OnnxRuntimeBackend(folder, manifest, num_slots=slots, threads=threads)
    products: tuple[Product, ...] = ("tensorrt", "tensorrt-rtx")
    for product in products:
        if manifest.backend.name == product:
            from .tensorrt import backend as tensorrt

            return tensorrt.load(folder, manifest, product, slots)
    raise EnvironmentProblem(
        f"{folder} was built for the backend {manifest.backend.name!r}",
        why="this version runs onnxruntime, tensorrt and tensorrt-rtx engines",
        fix="rebuild with a --backend that is one of them",
    )
