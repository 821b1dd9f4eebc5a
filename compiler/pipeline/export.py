"""Graphs to keep: the semantic graph and one backend's lowered graphs, with their weights, as files of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...graphs.drafters import DrafterSpec
from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.pair import ASSUMED_DEPTH, cache_length, longest_sequence, read_inputs
from ..checkpoints.registry import Resolved, has_drafter, resolve, resolve_target
from ..checkpoints.target import Target
from ..console.progress import Progress, Quiet
from ..hardware.packages import export_versions, product_version
from ..precision.calibration.ranges import FOLDER, describe
from ..precision.products import product_table
from ..precision.recipes import Recipe, emulated, twice_rounded, wide_type, widened
from ..request.export_options import ExportOptions
from ..store.publish import EXPORT, Assembly, assembling
from ..store.stages import StageStore
from .compiled import attach, noted, trace
from .half import drafter_half, target_half
from .ranges import calibrated
from .report import Phases, peak_rss

__all__ = ["ExportOptions", "ExportResult", "export"]

FORMAT_VERSION = 1
REPORT = "export_report.json"


@dataclass(frozen=True)
class ExportResult:
    """The folder written, and what ``export_report.json`` says."""

    path: Path
    report: dict[str, Any]


@dataclass(frozen=True)
class _Job:
    """The checkpoints to export, the sizes of their graphs, and what names the checkpoints again."""

    target: Target
    drafter: tuple[Checkpoint, DrafterSpec] | None
    recipe: Recipe
    max_seq_len: int
    max_k: int
    cache_length: int
    repeat: Mapping[str, str | None]
    warnings: tuple[str, ...]

    def checkpoints(self) -> dict[str, Checkpoint]:
        """By half."""
        return {"target": self.target.checkpoint} | ({"drafter": self.drafter[0]} if self.drafter else {})


def export(options: ExportOptions, progress: Progress | None = None, store: StageStore | None = None) -> ExportResult:
    """Write ``options.out``: for the target and its drafter ``semantic.onnx``, ``model.onnx`` and their weights.

    A target whose drafter is not named, and not known, is exported alone. Raises ``UsageError``, ``EnvironmentProblem``
    or ``BuildError``; whatever goes wrong, ``options.out`` is what it was before or the finished export.
    """
    progress = progress or Quiet()
    options.check()
    store = store or StageStore.default(force=options.force)
    phase = Phases()
    with phase("resolve"):
        versions = export_versions()
        resolved = _resolve(options, progress)
    with phase("import"), progress.step("import"):
        import onnxscript  # noqa: F401  # measured apart: what the libraries take is not what the export takes
        import torch  # noqa: F401
        import transformers  # noqa: F401
    imports = peak_rss()
    with phase("read"), progress.step("read checkpoints"):
        job = _pair(options, resolved) if isinstance(resolved, Resolved) else _target_alone(options, *resolved)
    ranges = calibrated(
        options.ranges, job.target, job.recipe, options.lowering, store, phase, progress, model=options.model
    )
    halves = [target_half(job.target, job.recipe, options.lowering, ranges)]
    if job.drafter:
        halves.append(drafter_half(*job.drafter, job.target.spec, job.recipe, options.lowering))
    own = replace(store, root=store.root / "exports")  # the export takes these steps away: nobody else may hold them
    compiled = {}
    for half in halves:
        with phase(f"trace {half.name}") as record:
            traced = trace(store, half, job.recipe.dtype, progress)
            record["reused"] = traced.reused
        with phase(f"attach {half.name}") as record:
            compiled[half.name] = attach(
                own, half, traced, lowering=options.lowering, cache_length=job.cache_length, progress=progress
            )
            record["reused"] = compiled[half.name].attached.reused
    sizes = {name: sum(e.size for e in done.attached.files.values()) for name, done in compiled.items()}
    with assembling(options.out, sizes) as assembly:
        with phase("assemble"), progress.step("assemble"):
            for half in halves:
                assembly.take_stage(compiled[half.name].attached, half.name)
                assembly.place_copy(half.checkpoint.folder / "config.json", f"{half.name}/config.json")
            assembly.place_tokenizer(job.target.folder)
            if ranges:
                ranges.save(assembly.folder / FOLDER)
                assembly.enter(FOLDER)
        report = _report(options, job, phase, sizes, imports)
        if ranges:
            report["calibration"] = describe(ranges)
        if narrowed := {name: done.precision for name, done in compiled.items() if done.precision}:
            report["precision"] = narrowed
            report["warnings"] += noted(compiled)
        tables = {name: product_table(done.precision, ()) for name, done in compiled.items()}
        report["matmuls"] = {name: table for name, table in tables.items() if table}
        assembly.place_text(REPORT, json.dumps(report, indent=2) + "\n")
        with progress.step("publish"):
            assembly.place_text(EXPORT, json.dumps(_manifest(options, job, versions, assembly), indent=2) + "\n")
    return ExportResult(options.out, report)


def _resolve(options: ExportOptions, progress: Progress) -> Resolved | tuple[Path, str | None]:
    """Both checkpoints, or the target's folder and commit where no drafter is named or known."""
    if options.draft is None and not has_drafter(options.model):
        return resolve_target(options.model, options.revision, progress)
    return resolve(options.model, options.draft, options.revision, options.draft_revision, progress)


def _pair(options: ExportOptions, resolved: Resolved) -> _Job:
    inputs = read_inputs(options, resolved)
    recipe = options.recipe(wide_type(inputs.target.checkpoint))
    return _Job(
        target=inputs.target,
        drafter=(inputs.drafter, inputs.head),
        recipe=recipe,
        max_seq_len=inputs.max_seq_len,
        max_k=inputs.max_k,
        cache_length=inputs.cache_length(options.lowering),
        repeat=resolved.repeatable(),
        warnings=(*inputs.warnings, *_said(options, recipe, inputs.target.checkpoint)),
    )


def _said(options: ExportOptions, recipe: Recipe, target: Checkpoint) -> list[str]:
    return [*widened(recipe, target), *twice_rounded(recipe, target), *emulated(recipe, options.lowering)]


def _target_alone(options: ExportOptions, folder: Path, commit: str | None) -> _Job:
    target = Target.open(folder).with_taps()
    max_seq_len, warnings = longest_sequence(target, options.max_seq_len)
    taps = target.spec.taps
    warnings.append(f"no drafter was named: the target is exported alone, its taps {taps} are the default")
    max_k = max(options.num_speculative_tokens or 0, ASSUMED_DEPTH)
    repeat = {"model": options.model if commit else str(folder), "draft": None, "revision": commit}
    length = cache_length(max_seq_len, max_k, options.lowering)
    recipe = options.recipe(wide_type(target.checkpoint))
    warnings += _said(options, recipe, target.checkpoint)
    return _Job(target, None, recipe, max_seq_len, max_k, length, repeat, tuple(warnings))


def _report(options: ExportOptions, job: _Job, phase: Phases, sizes: Mapping[str, int], imports: int) -> dict[str, Any]:
    """Time and memory of every phase; memory beyond what importing the libraries took."""
    peak = peak_rss()
    seconds = sum(record["seconds"] for record in phase.done)
    return {
        "phases": phase.done,
        "seconds": round(seconds, 3),
        "peak_rss_bytes": peak,
        "peak_rss_after_imports_bytes": imports,
        "peak_rss_beyond_imports_bytes": peak - imports,
        "checkpoint_bytes": {name: each.stored_bytes for name, each in job.checkpoints().items()},
        "checkpoint_format": {name: each.format for name, each in job.checkpoints().items()},
        "bytes": dict(sizes),
        "for": options.lowering.name,
        "recipe": job.recipe.record(),
        "warnings": list(job.warnings),
    }


def _manifest(options: ExportOptions, job: _Job, versions: Mapping[str, str], assembly: Assembly) -> dict[str, Any]:
    """What the folder is, and enough to make it again."""
    return {
        "format_version": FORMAT_VERSION,
        "product_version": product_version(),
        "for": options.lowering.name,
        "precision": options.chosen_precision,
        **({"recipe": job.recipe.record()} if job.recipe.narrows else {}),
        "cache_length": job.cache_length,
        "max_seq_len": job.max_seq_len,
        "max_num_speculative_tokens": job.max_k,
        "checkpoints": {name: each.fingerprint for name, each in job.checkpoints().items()},
        **job.repeat,
        "versions": dict(versions),
        "files": {name: asdict(entry) for name, entry in sorted(assembly.files.items())},
    }
