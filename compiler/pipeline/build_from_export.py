"""Build an engine from an export: plans of graphs that another machine made, without checkpoints or torch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...engines.folder.manifest import BUILT_FORMAT, Manifest
from ...engines.folder.records import Speculation
from ...plugins.errors import EnvironmentProblem, UsageError
from ...plugins.optional_packages import require
from ...plugins.problems import counted
from ...plugins.tensorrt.products import PRODUCTS
from ..console.progress import Progress
from ..precision.recipes import MULTIPLIED, Recipe
from ..request.build_plan import BuildPlan
from ..request.build_platform import BuildPlatform
from ..request.export_platform import ExportedGraphs, planned_platform, platform_of_export
from ..request.request import CompileRequest
from ..resources.check import builder_needs, check_needs, disk_needs, remove_leftovers
from ..resources.disk import Disk, disk_of, done_bytes
from ..resources.work import BuilderWork
from ..store.destination import EXPORT, require_disjoint, require_publishable
from ..store.publish import Assembly
from ..store.stages import StageStore
from .assemble_engine import BuildResult, EnginePieces, assemble
from .engine_manifest import of_plans
from .export_folder.build_record import GRAPH, RECORD, ExportFolder, read_export
from .graph_stages import MODEL
from .plan_stages import PLAN, Plans, PlanSource, build_plans
from .reports.recorded_contents import EXPORT_REPORT
from .shared_steps import PipelineRun

_EXPORT_ONLY = (EXPORT, RECORD, EXPORT_REPORT)


def build_from(request: CompileRequest, progress: Progress | None = None) -> BuildResult:
    """Build the engine ``request.out`` from the export ``request.source``.

    Raises ``UsageError``, ``EnvironmentProblem`` or ``BuildError``. ``request.out`` is replaced only by a finished
    engine; the next build reuses finished plans.
    """
    check_from(request)
    run = PipelineRun.begin(StageStore.default(force=request.force), progress)
    with run.phases("read", "read the export"):
        export, plan = plan_of_plans(request)
        run = run.making(plan)
        remove_leftovers(request, run.store)
        disk, builder = takes(plan, export, run.store)
        warnings = check_needs((*disk_needs(disk), *builder_needs(builder)), ignored=request.ignore_limits)
    with run.phases("hash"):
        export.check(run.progress)
    sources = {name: _source(export, name, size) for name, size in export.weight_bytes.items()}

    def make_plans(num_speculative_tokens: int) -> tuple[Plans, Manifest]:
        drafting = plan.drafting(num_speculative_tokens)
        plans = build_plans(run, sources, drafting)
        return plans, _with_plans(drafting, plans, export)

    plans, manifest = make_plans(plan.speculation.num_speculative_tokens)
    stages = plans.stages()
    pieces = EnginePieces(
        stages=stages,
        folders={name: name for name in stages},
        compiled=plans.compiled(),
        place_side_files=lambda assembly: _copy_side_files(assembly, export),
        account=export.account,
        plans=plans,
        make_plans=make_plans,
    )
    return assemble(run, plan, pieces, manifest, [*plan.warnings, *warnings], (), _config)


def check_from(request: CompileRequest) -> None:
    """Raise ``UsageError`` for options that no engine can be built with."""
    request.plans.check()
    request.sizes.check(fix="omit --num-speculative-tokens to use the trained depth of the head")
    require_disjoint(request.out, request.source)
    require_publishable(request.out)


def plan_of_plans(request: CompileRequest) -> tuple[ExportFolder, BuildPlan]:
    """Return the export and the plan of a build from it; file hashes are not compared yet."""
    export = _export_of(request)
    platform = platform_of_export(request.backend, _graphs_of(export))
    require(PRODUCTS[platform.backend].extra, "building plans")
    return export, _plan(request, export, platform)


def plan_of_any_export(request: CompileRequest) -> tuple[ExportFolder, BuildPlan, EnvironmentProblem | None]:
    """Return ``plan_of_plans`` for a dry run, and the problem that prevents the build on this machine, if any.

    Estimates for a GPU do not depend on the machine.
    """
    try:
        return *plan_of_plans(request), None
    except EnvironmentProblem as problem:
        export = _export_of(request)
        platform = planned_platform(request.backend, _graphs_of(export))
        if platform is None:
            raise
        return export, _plan(request, export, platform), problem


def takes(plan: BuildPlan, export: ExportFolder, store: StageStore) -> tuple[Disk, BuilderWork]:
    """Return the disk space that the plans of an export need, and the work of building the larger one."""
    written = export.weight_bytes
    disk = disk_of(
        store.root, plan.request.out, sum(written.values()), has_plans=True, has_graphs=False,
        done_bytes=0 if store.force else done_bytes(store.root, plan.stage_origin()),
    )  # fmt: skip
    largest = max(written, key=lambda name: written[name])
    return disk, BuilderWork.of(
        plan.platform.backend, written[largest], len(export.record.manifest.parts[largest].caches)
    )


def _export_of(request: CompileRequest) -> ExportFolder:
    if request.source is None:
        raise UsageError("no export was given", fix="add --from DIR")
    return read_export(request.source)


def _plan(request: CompileRequest, export: ExportFolder, platform: BuildPlatform) -> BuildPlan:
    manifest = export.record.manifest
    return BuildPlan(
        command="build",
        request=request,
        platform=platform,
        recipe=Recipe.recorded(manifest.precision, export.record.wide),
        speculation=_speculation(request, manifest.speculation),
        max_seq_len=manifest.shapes.max_seq_len,
        names={name: part.origin.id for name, part in zip(("model", "draft"), manifest.parts.values(), strict=False)},
        warnings=export.record.warnings,
    )


def _speculation(request: CompileRequest, exported: Speculation) -> Speculation:
    """Return the requested speculation. Raises ``UsageError`` for more drafts than the caches have room for."""
    requested, max_drafts = request.sizes.num_speculative_tokens, exported.max_num_speculative_tokens
    if requested is None:
        return exported
    if not min(max_drafts, 1) <= requested <= max_drafts:
        if not max_drafts:
            problem, why = "cannot be used with this export", "the export is for plain decoding"
        elif not requested:
            problem, why = "cannot be used with this export", "0 means plain decoding, but the export is for drafts"
        else:
            problem, why = (
                f"is not between 1 and {max_drafts}",
                f"the caches of the export have room for {counted(max_drafts, 'draft')}",
            )
        raise UsageError(
            f"--num-speculative-tokens {requested} {problem}",
            why=why,
            fix="omit the option, or export again with "
            + (f"--num-speculative-tokens {requested}" if requested else "--draft none, for plain decoding"),
        )
    return replace(exported, num_speculative_tokens=requested, adapts=False)


def _graphs_of(export: ExportFolder) -> ExportedGraphs:
    manifest = export.record.manifest
    types = {*manifest.precision.values()}
    return ExportedGraphs(
        str(export.path), manifest.backend.lowering, export.record.gpus, types, export.has_expert_layer()
    )


def _source(export: ExportFolder, component: str, size: int) -> PlanSource:
    folder = export.path.absolute() / component
    autoregressive = export.record.manifest.parts[component].is_autoregressive
    proof = export.account.proofs.get(component)
    return PlanSource(folder / MODEL, export.key[component], size, proof, folder / GRAPH, autoregressive)


def _with_plans(plan: BuildPlan, plans: Plans, export: ExportFolder) -> Manifest:
    """Return the manifest of the engine with these plans."""
    manifest, platform = export.record.manifest, plan.platform
    versions = {platform.backend: platform.version} | json.loads((export.path / EXPORT).read_bytes())["versions"]
    versions |= plans.versions()
    parts = {
        name: replace(part, file=f"{name}/{PLAN}", plan=plans.by_component[name].facts.plan)
        for name, part in manifest.parts.items()
    }
    first = export.account.lead_sentence(plans.products())
    recorded = {name: text for name, text in manifest.precision.items() if name != MULTIPLIED}
    backend = replace(manifest.backend, name=platform.backend, versions=versions, gpus=platform.gpus)
    drafter = parts.get("drafter")
    return replace(
        manifest,
        target=parts["target"],
        drafter=drafter,
        backend=backend,
        precision=({MULTIPLIED: first} if first else {}) | recorded,
        speculation=plan.speculation,
        evidence=of_plans(platform, versions),
        format_version=BUILT_FORMAT,
    )


def _copy_side_files(assembly: Assembly, export: ExportFolder) -> None:
    """Copy configurations, tokenizer, templates and ranges; plugins are compiled on this machine."""
    elsewhere = ("plugins/", *(f"{name}/" for name in export.record.manifest.parts))
    for name in export.files:
        is_copied = name not in _EXPORT_ONLY and not name.startswith(elsewhere)
        if is_copied or Path(name).name == "config.json":
            assembly.place_copy(export.path / name, name)


def _config(plan: BuildPlan, manifest: Manifest) -> str:
    request, platform, speculation = plan.request, plan.platform, manifest.speculation
    content: dict[str, Any] = {
        "from_export": str(request.source and request.source.absolute()),
        "out": str(request.out),
        "backend": platform.backend,
        "gpus": platform.gpus,
        "num_speculative_tokens": None if speculation.adapts else speculation.num_speculative_tokens,
        "max_batch_size": plan.max_batch_size,
        "optimization_level": request.plans.optimization_level,
        "workspace_gb": request.plans.workspace_gb,
        "recipe": manifest.precision,
    }
    return json.dumps(content, indent=2) + "\n"
