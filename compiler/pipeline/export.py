"""Export graphs as files: the semantic graphs and one backend's lowered graphs, with their weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..checkpoints.resolve_names import resolve, resolve_target
from ..checkpoints.target_and_drafter import Inputs, read_inputs, read_target_alone
from ..console.progress import Progress
from ..hardware.packages import export_versions, product_version
from ..precision.calibration.obtain_ranges import describe
from ..precision.recipes import MULTIPLIED, STORED
from ..request.build_plan import BuildPlan, plan_of_export
from ..request.refusals import check_export, exports_alone
from ..request.request import CompileRequest
from ..resources.sequence_length import with_length
from ..resources.speed.round_estimate import SPEED
from ..resources.workload import check_resources
from ..store.destination import EXPORT
from ..store.phase_clock import peak_rss
from ..store.publish import Assembly, assembling
from ..store.stages import StageStore
from .engine_speed import EngineSpeed
from .export_folder.build_record import place_record
from .plan_stages import library_of_export
from .reports.recorded_contents import EXPORT_REPORT
from .shared_steps import Graphs, PipelineRun, bytes_of, compile_graphs

FORMAT_VERSION = 1


@dataclass(frozen=True)
class ExportResult:
    """The written folder, and the content of ``export_report.json``."""

    path: Path
    report: dict[str, Any]


def export(request: CompileRequest, progress: Progress | None = None, store: StageStore | None = None) -> ExportResult:
    """Write ``request.out``: ``semantic.onnx``, ``model.onnx`` and the weights of the target and its drafter.

    The target is exported alone if no drafter is requested, or if none is given and none is known. Raises
    ``UsageError``, ``EnvironmentProblem`` or ``BuildError``. ``request.out`` is replaced only by a finished export.
    """
    check_export(request)
    run = PipelineRun.begin(store or StageStore.default(force=request.force), progress)
    with run.phases("resolve"):
        versions = export_versions()
        read = _resolve(request, run.progress)
    with run.phases("import", "import torch and transformers"):
        import onnxscript  # noqa: F401  # measured separately from the export itself
        import torch  # noqa: F401
        import transformers  # noqa: F401
    imports = peak_rss()
    with run.phases("read", "read checkpoints"):
        inputs = read()
        plan = with_length(plan_of_export(request, inputs), inputs)
    run = run.making(plan)
    with run.phases("room", "check disk space and memory"):
        warnings = [*plan.warnings, *check_resources(plan, inputs, run.store)]
    # The export moves the weights out of the store, so no other build may share them.
    store_of_exports = replace(run.store, root=run.store.root / "exports")
    graphs = compile_graphs(run, plan, inputs, store=store_of_exports)
    speed = EngineSpeed.of(plan, inputs, graphs).on_gpu()
    stages = graphs.stages()
    sizes = bytes_of(stages)
    library = library_of_export(run, plan.platform.gpus if plan.lowering.is_tensorrt else ())
    with assembling(request.out, sizes, run.progress) as assembly:
        with run.phases("assemble"):
            for name, stage in stages.items():
                assembly.adopt_stage(stage, name, run.progress)
            graphs.place_side_files(assembly)
            if plan.lowering.is_tensorrt and not inputs.is_alone:
                place_record(assembly, plan, inputs, graphs, [*warnings, *graphs.notes()])
            if library.stage:
                assembly.place_stage(library.stage, "plugins", run.progress)
        warnings += library.warnings
        report = _report(plan, inputs, graphs, warnings, run, sizes, imports)
        report |= {SPEED: speed.as_json()} if speed else {}
        assembly.place_text(EXPORT_REPORT, json.dumps(report, indent=2) + "\n")
        manifest = _manifest(plan, inputs, graphs, versions, assembly)
        assembly.place_text(EXPORT, json.dumps(manifest, indent=2) + "\n")
        assembly.check(run.progress)
    return ExportResult(request.out, report)


def _resolve(request: CompileRequest, progress: Progress) -> Callable[[], Inputs]:
    """Fetch both checkpoints, or the target's alone without a drafter; return the function that reads them."""
    pair = request.pair
    if request.headless:
        alone = resolve_target(pair.model, pair.revision, progress, request.headless)
        return partial(read_inputs, request.sizes, alone, request.head.over)
    if exports_alone(request):
        alone = resolve_target(pair.model, pair.revision, progress)
        return partial(read_target_alone, request.sizes, alone, request.head.layers)
    resolved = resolve(pair.model, pair.draft, pair.revision, pair.draft_revision, progress)
    return partial(read_inputs, request.sizes, resolved, request.head.over)


def _stored(inputs: Inputs) -> dict[str, str]:
    """Return the storage types of a GGUF file, as an entry of reports."""
    stored = inputs.target.checkpoint.stored
    return {STORED: stored} if stored else {}


def _report(
    plan: BuildPlan,
    inputs: Inputs,
    graphs: Graphs,
    warnings: Sequence[str],
    run: PipelineRun,
    sizes: Mapping[str, int],
    imports: int,
) -> dict[str, Any]:
    """Return the content of ``export_report.json``.

    It has the time and memory of every phase, and the memory beyond that of the imported libraries.
    """
    peak = peak_rss()
    checkpoints, first = inputs.checkpoints, graphs.account().lead_sentence({})
    report: dict[str, Any] = ({MULTIPLIED: first} if first else {}) | {
        "phases": run.phases.done,
        "seconds": round(sum(record["seconds"] for record in run.phases.done), 3),
        "peak_rss_bytes": peak,
        "peak_rss_after_imports_bytes": imports,
        "peak_rss_beyond_imports_bytes": peak - imports,
        "checkpoint_bytes": {name: checkpoint.stored_bytes for name, checkpoint in checkpoints.items()},
        "checkpoint_format": {name: checkpoint.format for name, checkpoint in checkpoints.items()},
        **_stored(inputs),
        "bytes": dict(sizes),
        "for": plan.lowering.name,
        "recipe": plan.recipe.record(),
        "warnings": [*([first] if first else []), *warnings, *graphs.notes()],
    }
    if graphs.ranges:
        report["calibration"] = describe(graphs.ranges)
    return report | graphs.account().products({})


def _manifest(
    plan: BuildPlan, inputs: Inputs, graphs: Graphs, versions: Mapping[str, str], assembly: Assembly
) -> dict[str, Any]:
    """Return the content of ``export.json``, which is enough to repeat the export."""
    first = graphs.account().lead_sentence({})
    return {
        **({MULTIPLIED: first} if first else {}),
        "format_version": FORMAT_VERSION,
        "product_version": product_version(),
        "for": plan.lowering.name,
        "precision": plan.recipe.name,
        **_stored(inputs),
        **({"recipe": plan.recipe.record()} if plan.recipe.is_quantized else {}),
        "cache_length": plan.cache_length,
        "max_seq_len": plan.max_seq_len,
        "max_num_speculative_tokens": plan.speculation.max_num_speculative_tokens,
        "checkpoints": {name: checkpoint.fingerprint for name, checkpoint in inputs.checkpoints.items()},
        **plan.names,
        "versions": dict(versions),
        "files": {name: asdict(entry) for name, entry in sorted(assembly.files.items())},
    }
