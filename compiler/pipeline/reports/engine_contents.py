"""Contents of an engine folder, from its manifest and, if ``onnx`` is installed, from its graphs.

Facts about plans were recorded when they were built, so reading them needs neither a GPU nor TensorRT.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ....engines.backends.onnxruntime.memory import row_bytes
from ....engines.folder.checks import check_files
from ....engines.folder.manifest import Manifest
from ....engines.folder.records import Part
from ....plugins.errors import EnvironmentProblem
from ....plugins.optional_packages import is_installed
from ...resources.speed.round_estimate import SPEED

KERNELS = "plugins"
REPORT, REPORT_PAGE = "build_report.json", "build_report.html"
VERIFY_REPORT = "verify.json"  # written later
PASS_BYTES = "pass_weight_bytes"  # key of the build report


def inspect_engine(folder: Path, *, hashes: bool = True) -> dict[str, Any]:
    """Check the folder, and return the manifest, sizes, operator counts of graphs, and kernels.

    ``cache_bytes`` are those of one request, None for plans; ``plugin_library`` is None if there is none.
    Raises ``EnvironmentProblem``.
    """
    manifest = Manifest.read(folder)
    check_files(manifest.files, folder, hashes=hashes)
    content = asdict(manifest)
    return {
        "engine": str(folder),
        **content,
        "method": manifest.method,
        "bytes": sum(entry.size for entry in manifest.files.values()),
        "operators": {name: _operators(folder, part) for name, part in manifest.parts.items()},
        "cache_bytes": None if manifest.backend.gpus else row_bytes(manifest),
        "kernels": _kernels(folder) if manifest.backend.gpus else _cpu_kernels(folder, manifest),
        "plugin_library": _plugin_library(folder, manifest),
        "matmuls": _reported(folder, "matmuls"),
        SPEED: _reported(folder, SPEED),
        "reports": [VERIFY_REPORT] if (folder / VERIFY_REPORT).is_file() else [],
    }


def _operators(folder: Path, part: Part) -> dict[str, int] | None:
    """Count the nodes of each operator, most frequent first; None for a plan, and if ``onnx`` is not installed.

    Steps of fused regions are counted as well.
    """
    if part.plan or not is_installed("onnx"):
        return None
    import onnx

    from ....graphs.fused_region_program import steps_of

    graph = onnx.load_model(folder / part.file, load_external_data=False).graph
    kinds = [(node.domain, node.op_type) for node in graph.node]
    kinds += [step for node in graph.node for step in steps_of(node)]
    counts = Counter(f"{domain}::{kind}" if domain else str(kind) for domain, kind in kinds)
    return dict(counts.most_common())


def pass_bytes(folder: Path) -> list[int]:
    """Return the bytes of weights that a pass of the target over 1, 2, ... columns reads; empty if they are unknown."""
    found = _report(folder).get(PASS_BYTES)
    return [int(count) for count in found] if isinstance(found, list) else []


def _reported(folder: Path, key: str) -> dict[str, Any]:
    """Return an object of the build report, such as the tables of matmuls by component; empty if it has none."""
    found = _report(folder).get(key)
    return found if isinstance(found, dict) else {}


def _report(folder: Path) -> dict[str, Any]:
    try:
        report = json.loads((folder / REPORT).read_bytes())
    except (OSError, ValueError):
        return {}
    return report if isinstance(report, dict) else {}


def _cpu_kernels(folder: Path, manifest: Manifest) -> list[dict[str, Any]]:
    """Return the library of CPU kernels: machine, bytes, compiler, and the instructions that it uses on this machine.

    Finding the instructions means running the library, which is done only if it was compiled on this machine. It is
    tested first unless the build tested it with this version of ONNX Runtime, as when an engine is loaded. Otherwise,
    or if the kernels do not work, ``instructions`` is empty and ``why`` gives the reason.
    """
    from ....engines.backends.onnxruntime.kernels import was_tested
    from ....plugins.cpu import INDEX, LIBRARY, SWITCH, is_off
    from ....plugins.cpu.pack import read_pack
    from ....plugins.cpu.self_test import instructions_of, try_library
    from ...store.stages import StageStore
    from ..cpu_kernels import is_compiled_locally

    if f"{KERNELS}/{INDEX}" not in manifest.files:
        return []
    library = read_pack(folder / KERNELS)
    row = {"machine": library.machine, "bytes": len(library.code), "compiler": library.compiler}
    if is_off():
        return [row | {"instructions": "", "why": f"disabled: {SWITCH} is off"}]
    try:
        is_local = is_compiled_locally(StageStore.default(), library)
    except EnvironmentProblem as problem:
        return [row | {"instructions": "", "why": f"not tested: {problem.what}"}]
    if not is_local:
        return [row | {"instructions": "", "why": "not tested: not compiled on this machine"}]
    path = folder / KERNELS / LIBRARY
    try:
        found = instructions_of(path) if was_tested(manifest) else try_library(path)
        return [row | {"instructions": found, "why": ""}]
    except EnvironmentProblem as problem:
        return [row | {"instructions": "", "why": f"does not work on this machine: {problem.why}"}]


def _plugin_library(folder: Path, manifest: Manifest) -> dict[str, Any] | None:
    """Return the index of the C++ plugin library; None if the engine has none."""
    from ....plugins.tensorrt.library import INDEX, LIBRARY
    from ....plugins.tensorrt.library.pack import read_index

    if f"{KERNELS}/{LIBRARY}" not in manifest.files or f"{KERNELS}/{INDEX}" not in manifest.files:
        return None
    return {"file": f"{KERNELS}/{LIBRARY}", **read_index(folder / KERNELS)}


def _kernels(folder: Path) -> list[dict[str, Any]]:
    """List the compiled plugin kernels: op, SM, bytes, and the resource usage of each entry point."""
    from ....plugins.kernels.pack import read_pack

    return [
        {
            "op": cubin.op,
            "sm": f"sm_{cubin.sm}",
            "bytes": len(cubin.code),
            "compiler": cubin.compiler,
            "usage": {entry: asdict(usage) for entry, usage in cubin.usage.items()},
        }
        for cubin in read_pack(folder / KERNELS).cubins
    ]
