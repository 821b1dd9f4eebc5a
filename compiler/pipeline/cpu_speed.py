"""The measured speed of this machine's CPU, kept for each model shape, library of kernels and machine."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ...plugins.cpu import LIBRARY, is_off
from ..hardware.cpu_probe import CpuSpeed, ProbeShape, measure_cpu
from .shared_steps import PipelineRun

if TYPE_CHECKING:
    from ...engines.folder.manifest import Manifest


def measured_cpu(shape: ProbeShape, run: PipelineRun, manifest: Manifest, folder: Path) -> CpuSpeed | None:
    """Return the speed of the kernels of the engine in ``folder``; None if it has none, or they are switched off."""
    library = folder / "plugins" / LIBRARY
    if not library.is_file() or is_off():
        return None
    from ...engines.backends.onnxruntime.loaded_graphs import default_threads

    threads = default_threads(manifest)

    def make(stage: Path) -> None:
        with run.progress.step("measure the CPU"):
            found = measure_cpu(shape, library, threads)
        (stage / "speed.json").write_text(json.dumps(asdict(found)))

    key = [manifest.files[f"plugins/{LIBRARY}"].sha256, asdict(shape), threads, platform.node()]
    kept = run.store.run("cpu-speed", key, make)
    return CpuSpeed(**json.loads((kept.path / "speed.json").read_bytes()))
