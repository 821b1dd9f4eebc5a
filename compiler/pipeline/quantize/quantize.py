"""Quantize a checkpoint to FP8: plan, calibrate (or load saved ranges), write, publish."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....plugins.number_formats import FP8
from ...checkpoints.checkpoint import CONFIG, Checkpoint, take_fingerprints
from ...checkpoints.json_files import MODELOPT_CONFIG
from ...checkpoints.resolve_names import resolve_target
from ...checkpoints.side_files import BESIDE_WEIGHTS
from ...checkpoints.target import Target
from ...console.progress import Progress
from ...hardware.packages import export_versions, product_version
from ...precision.calibration.calibration_options import FOLDER
from ...precision.calibration.obtain_ranges import describe, obtain
from ...request.refusals import check_quantize
from ...request.request import CompileRequest
from ...resources.check import Need, calibration_needs, check_needs, disk_needs, remove_leftovers
from ...resources.disk import disk_of
from ...resources.work import CalibrationWork
from ...resources.workload import calibration_of
from ...store.destination import QUANTIZED
from ...store.phase_clock import Phases, peak_rss
from ...store.publish import Assembly, assembling
from ...store.stage_origin import StageOrigin
from ...store.stages import StageStore
from ..shared_steps import PipelineRun
from .modelopt_config import hf_quant_config, quantization_config
from .select_matrices import Worklist, make_worklist
from .write_shards import layout, total_bytes, write

if TYPE_CHECKING:
    from ...precision.calibration.saved_ranges import Scales


@dataclass(frozen=True)
class QuantizeResult:
    """The written folder, and the content of its report."""

    path: Path
    report: dict[str, Any]


def quantize(
    request: CompileRequest, progress: Progress | None = None, store: StageStore | None = None
) -> QuantizeResult:
    """Write ``request.out``: the checkpoint with E4M3 matrices in ModelOpt's format, and the calibrated ranges.

    Raises ``UsageError``, ``EnvironmentProblem`` or ``BuildError``. ``request.out`` is replaced only by a finished
    checkpoint. Finished layers of a calibration are kept, and the same call resumes from them.
    """
    check_quantize(request)
    run = PipelineRun.begin(store or StageStore.default(force=request.force), progress)
    phase, progress, store = run.phases, run.progress, run.store
    with phase("resolve"):
        export_versions()
        resolved = resolve_target(request.pair.model, request.pair.revision, progress)
    with phase("plan", "read the checkpoint"):
        target = Target.open(resolved.target)
        checkpoint = target.checkpoint
        work = make_worklist(target, request.precision.exclude, kv_cache=request.precision.kv_cache is not None)
        size = total_bytes(layout(checkpoint, work))
        remove_leftovers(request, store)
        warnings = check_needs(_needs(request, target, store, size), ignored=request.ignore_limits)
    store = replace(store, stage_origin=StageOrigin("quantize", request.pair.model, precision=FP8.name))
    with phase("hash", "hash the checkpoint"):
        take_fingerprints([checkpoint], progress)
    with phase("calibrate"):
        scales = obtain(request.calibration, target, store, progress, model=request.pair.model)
    with assembling(request.out, {"weights": size}, progress) as assembly:
        with phase("write"):
            write(assembly.folder, checkpoint, work, scales, progress)
        checkpoint.require_unchanged()
        scales.save(assembly.folder / FOLDER)
        _describe(assembly, checkpoint, work, request)
        report = _report(request, checkpoint, work, scales, phase, size, warnings) | {
            name: value for name, value in resolved.repeatable().items() if name in ("model", "revision")
        }
        assembly.place_text(QUANTIZED, json.dumps(report, indent=2) + "\n")
        assembly.check(progress)
    return QuantizeResult(request.out, report)


def _needs(request: CompileRequest, target: Target, store: StageStore, size: int) -> tuple[Need, ...]:
    """Return the needs of the output and of a layer in memory; a calibration checks its streams when it starts."""
    options = calibration_of(request.calibration, target.family.text(target.config))
    memory = calibration_needs(CalibrationWork.of(target.skeleton.weights, options)) if options else ()
    return (*disk_needs(disk_of(store.root, request.out, size, has_graphs=False, is_moved=True)), *memory)


def _describe(assembly: Assembly, checkpoint: Checkpoint, work: Worklist, request: CompileRequest) -> None:
    """Write the configurations, and copy the files beside the weights."""
    described = hf_quant_config(
        work.exclude_modules, kv_cache=request.precision.kv_cache is not None, version=product_version()
    )
    config = {**checkpoint.config, "quantization_config": quantization_config(described)}
    assembly.place_text(MODELOPT_CONFIG, json.dumps(described, indent=2) + "\n")
    assembly.place_text(CONFIG, json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    for path in sorted(checkpoint.folder.iterdir()):
        if path.is_file() and any(fnmatch(path.name, pattern) for pattern in BESIDE_WEIGHTS):
            assembly.place_copy(path, path.name)


def _report(
    request: CompileRequest,
    checkpoint: Checkpoint,
    work: Worklist,
    scales: Scales,
    phase: Phases,
    size: int,
    warnings: Sequence[str],
) -> dict[str, Any]:
    """Return the content of the report."""
    return {
        "product_version": product_version(),
        "format": "modelopt-fp8",
        "source_fingerprint": checkpoint.fingerprint,
        "source_bytes": checkpoint.stored_bytes,
        "bytes": size,
        "fp8_matrices": len(work.matrices),
        "fp8_bytes": sum(math.prod(checkpoint.shapes[key]) for key in work.matrices),
        "exclude": list(request.precision.exclude),
        "exclude_modules": list(work.exclude_modules),
        "kv_cache_dtype": request.precision.kv_cache,
        "calibration": describe(scales),
        "phases": phase.done,
        "seconds": round(sum(record["seconds"] for record in phase.done), 1),
        "peak_rss_bytes": peak_rss(),
        "warnings": [*warnings, *scales.facts.warnings, *work.warnings],
    }
