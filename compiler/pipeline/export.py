"""Graphs to keep: the semantic graph and one backend's lowered graphs, with their weights, as files of their own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ...graphs.drafters import DrafterSpec
from ...graphs.lowering import Lowering
from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.resolve_names import Resolved, has_drafter, resolve, resolve_target
from ..checkpoints.target import Target
from ..checkpoints.target_and_drafter import (
    ASSUMED_DEPTH,
    Inputs,
    cache_length,
    longest_sequence,
    read_inputs,
    require_runner,
)  # fmt: skip
from ..console.progress import Progress
from ..hardware.gpus import sm_names
from ..hardware.packages import export_versions, product_version
from ..needs.enough_room import require_room_for
from ..precision.calibration.obtain_ranges import describe
from ..precision.decide_recipe import decide
from ..precision.recipes import MULTIPLIED, STORED, Recipe
from ..request.experts_form import suited
from ..request.refusals import check_export, export_lowering
from ..request.request import CompileRequest
from ..store.destination import EXPORT
from ..store.made_for import MadeFor
from ..store.phase_clock import peak_rss
from ..store.publish import Assembly, assembling
from ..store.stages import StageStore
from .export_folder.build_record import place_record
from .plan_stages import library_of_export
from .shared_steps import Blueprint, Graphs, PipelineRun, bytes_of, compile_graphs

FORMAT_VERSION = 1
REPORT = "export_report.json"


@dataclass(frozen=True)
class ExportResult:
    """The folder written, and what ``export_report.json`` says."""

    path: Path
    report: dict[str, Any]


@dataclass(frozen=True)
class _Job:
    """The graphs to export, the sizes that they were made for, and what names the checkpoints again."""

    blueprint: Blueprint
    max_seq_len: int
    max_k: int
    repeat: Mapping[str, str | None]
    warnings: tuple[str, ...]
    inputs: Inputs | None = None

    def stored(self) -> dict[str, str]:
        """Return what the numbers of a GGUF file are stored as."""
        stored = self.blueprint.target.checkpoint.stored
        return {STORED: stored} if stored else {}

    def checkpoints(self) -> dict[str, Checkpoint]:
        """Return the checkpoints, by half."""
        drafter = self.blueprint.drafter
        return {"target": self.blueprint.target.checkpoint} | ({"drafter": drafter[0]} if drafter else {})


def export(request: CompileRequest, progress: Progress | None = None, store: StageStore | None = None) -> ExportResult:
    """Write ``request.out``: for the target and its drafter ``semantic.onnx``, ``model.onnx`` and their weights.

    A target whose drafter is not wanted, or not named and not known, is exported alone. Raises ``UsageError``,
    ``EnvironmentProblem`` or ``BuildError``; whatever goes wrong, ``request.out`` is what it was before or the finished
    export.
    """
    check_export(request)
    run = PipelineRun.begin(store or StageStore.default(force=request.force), progress)
    with run.phases("resolve"):
        versions = export_versions()
        read = _resolve(request, run.progress)
    with run.phases("import", "import torch and transformers"):
        import onnxscript  # noqa: F401  # measured apart: what the libraries take is not what the export takes
        import torch  # noqa: F401
        import transformers  # noqa: F401
    imports = peak_rss()
    with run.phases("read", "read checkpoints"):
        job = read()
    names, blueprint = job.repeat, job.blueprint
    made_for = MadeFor(
        "export", str(names["model"]), names["draft"] or "", blueprint.recipe.name, blueprint.lowering.name
    )
    run = replace(run, store=replace(run.store, made_for=made_for))
    with run.phases("room", "see whether disk and memory are enough"):
        blueprint.require_multiplied()
        told = require_room_for(request, run.store, blueprint.wanted(request.calibration), is_moved=True)
    job = replace(job, warnings=(*job.warnings, *told))
    # The export takes the weights away: nobody else may hold them.
    store_of_exports = replace(run.store, root=run.store.root / "exports")
    graphs = compile_graphs(run, blueprint, request.calibration, model=request.pair.model, store=store_of_exports)
    stages = graphs.stages()
    sizes = bytes_of(stages)
    library = library_of_export(run, sm_names(request.backend.gpus) if blueprint.lowering.is_tensorrt else ())
    with assembling(request.out, sizes) as assembly:
        with run.phases("assemble"):
            for name, stage in stages.items():
                assembly.take_stage(stage, name, run.progress)
            graphs.furnish(assembly, job.blueprint.target.folder)
            if blueprint.lowering.is_tensorrt and job.inputs:
                place_record(
                    assembly, graphs, job.inputs, plain=request.draft == "none", gpus=sm_names(request.backend.gpus),
                    warnings=[*job.warnings, *blueprint.warnings(), *graphs.account().notes()],
                )  # fmt: skip
            if library.stage:
                assembly.place_stage(library.stage, "plugins", run.progress)
        job = replace(job, warnings=(*job.warnings, *library.warnings))
        report = _report(job, graphs, run, sizes, imports)
        assembly.place_text(REPORT, json.dumps(report, indent=2) + "\n")
        manifest = _manifest(job, graphs, versions, assembly)
        assembly.place_text(EXPORT, json.dumps(manifest, indent=2) + "\n")
        assembly.check(run.progress)
    return ExportResult(request.out, report)


def _resolve(request: CompileRequest, progress: Progress) -> Callable[[], _Job]:
    """Fetch both checkpoints, or the target's where no drafter is wanted, named or known; return what reads them."""
    pair = request.pair
    if request.draft != "drafter":
        ngram = request.draft == "ngram"
        return partial(_pair, request, resolve_target(pair.model, pair.revision, progress, ngram=ngram))
    if pair.draft is None and not has_drafter(pair.model):
        return partial(_target_alone, request, resolve_target(pair.model, pair.revision, progress))
    resolved = resolve(pair.model, pair.draft, pair.revision, pair.draft_revision, progress)
    return partial(_pair, request, resolved)


def _pair(request: CompileRequest, resolved: Resolved) -> _Job:
    inputs = read_inputs(request.sizes, resolved, request.head.over)
    lowering, said = suited(export_lowering(request), request.backend.experts, inputs.target.family)
    require_runner(inputs.head, lowering)
    blueprint = Blueprint(
        target=inputs.target,
        drafter=inputs.drafter,
        recipe=_recipe(request, lowering, inputs.target, inputs.head),
        lowering=lowering,
        cache_length=inputs.cache_length(lowering),
    )
    warnings = (*inputs.warnings, *request.unused(), *said)
    return _Job(blueprint, inputs.max_seq_len, inputs.max_k, resolved.repeatable(), warnings, inputs)


def _target_alone(request: CompileRequest, resolved: Resolved) -> _Job:
    target = Target.open(resolved.target).with_taps()
    lowering, said = suited(export_lowering(request), request.backend.experts, target.family)
    max_seq_len, warnings = longest_sequence(target, request.sizes.max_seq_len)
    taps = target.spec.taps
    warnings.append(f"no drafter was named: the target is exported alone, its taps {taps} are the default")
    max_k = max(request.sizes.num_speculative_tokens or 0, ASSUMED_DEPTH)
    length = cache_length(max_seq_len, max_k, lowering)
    blueprint = Blueprint(target, None, _recipe(request, lowering, target), lowering, length)
    return _Job(blueprint, max_seq_len, max_k, resolved.repeatable(), (*resolved.notes, *warnings, *said))


def _recipe(request: CompileRequest, lowering: Lowering, target: Target, head: DrafterSpec | None = None) -> Recipe:
    """What was asked for; for a GPU that was named, what a build on it would take where nothing was."""
    gpus = sm_names(request.backend.gpus)
    return decide(request.precision, lowering, target, gpus, keeps_own=bool(gpus), head=head)


def _report(job: _Job, graphs: Graphs, run: PipelineRun, sizes: Mapping[str, int], imports: int) -> dict[str, Any]:
    """Return the content of ``export_report.json``.

    Time and memory of every phase are in it, and memory beyond what importing the libraries took.
    """
    peak = peak_rss()
    checkpoints, blueprint, first = job.checkpoints(), job.blueprint, graphs.account().first_words({})
    report: dict[str, Any] = ({MULTIPLIED: first} if first else {}) | {
        "phases": run.phases.done,
        "seconds": round(sum(record["seconds"] for record in run.phases.done), 3),
        "peak_rss_bytes": peak,
        "peak_rss_after_imports_bytes": imports,
        "peak_rss_beyond_imports_bytes": peak - imports,
        "checkpoint_bytes": {name: checkpoint.stored_bytes for name, checkpoint in checkpoints.items()},
        "checkpoint_format": {name: checkpoint.format for name, checkpoint in checkpoints.items()},
        **job.stored(),
        "bytes": dict(sizes),
        "for": blueprint.lowering.name,
        "recipe": blueprint.recipe.record(),
        "warnings": [*([first] if first else []), *job.warnings, *blueprint.warnings(), *graphs.account().notes()],
    }
    if graphs.ranges:
        report["calibration"] = describe(graphs.ranges)
    return report | graphs.account().products({})


def _manifest(job: _Job, graphs: Graphs, versions: Mapping[str, str], assembly: Assembly) -> dict[str, Any]:
    """Return the content of ``export.json``: what the folder is, and enough to make it again."""
    blueprint, first = job.blueprint, graphs.account().first_words({})
    return {
        **({MULTIPLIED: first} if first else {}),
        "format_version": FORMAT_VERSION,
        "product_version": product_version(),
        "for": blueprint.lowering.name,
        "precision": blueprint.recipe.name,
        **job.stored(),
        **({"recipe": blueprint.recipe.record()} if blueprint.recipe.is_quantized else {}),
        "cache_length": blueprint.cache_length,
        "max_seq_len": job.max_seq_len,
        "max_num_speculative_tokens": job.max_k,
        "checkpoints": {name: checkpoint.fingerprint for name, checkpoint in job.checkpoints().items()},
        **job.repeat,
        "versions": dict(versions),
        "files": {name: asdict(entry) for name, entry in sorted(assembly.files.items())},
    }
