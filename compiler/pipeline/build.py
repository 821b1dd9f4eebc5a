"""Build an engine folder from a checkpoint pair: resolve, read, make graphs and plans, choose K, publish."""

from __future__ import annotations

from dataclasses import replace

from ...engines.folder.manifest import Manifest
from ...plugins.errors import BuildError, UsageError
from ..checkpoints.resolve_names import Resolved, resolve, resolve_target
from ..checkpoints.target_and_drafter import Inputs, read_inputs
from ..console.progress import Progress
from ..hardware.packages import export_versions
from ..request.build_plan import BuildPlan, plan_of_build
from ..request.build_platform import BuildPlatform, platform_of
from ..request.refusals import check_build
from ..request.request import CompileRequest
from ..request.resolved_config import resolved_config
from ..resources.sequence_length import with_length
from ..resources.workload import check_resources
from ..store.stages import StageStore
from .assemble_engine import BuildResult, EnginePieces, assemble
from .cpu_kernels import CpuKernels, cpu_kernels
from .engine_manifest import engine_manifest
from .engine_speed import EngineSpeed
from .plan_stages import Plans, PlanSource, build_plans
from .shared_steps import PipelineRun, compile_graphs
from .skeleton_stage import with_kept_skeleton


def build(request: CompileRequest, progress: Progress | None = None, store: StageStore | None = None) -> BuildResult:
    """Build ``request.pair.model`` with its drafter if one is requested, into the engine folder ``request.out``.

    Raises ``UsageError``, ``EnvironmentProblem`` or ``BuildError``. ``request.out`` is replaced only by a finished
    engine; the next build reuses finished steps.
    """
    check_build(request)
    run = PipelineRun.begin(store or StageStore.default(force=request.force), progress)
    with run.phases("resolve"):
        platform = platform_of(request)
        versions = {platform.backend: platform.version, **export_versions()}
        resolved = _resolve(request, run.progress)
    with run.phases("read", "read checkpoints"):
        inputs = read_inputs(request.sizes, resolved, request.head.over)
        inputs = replace(inputs, target=with_kept_skeleton(inputs.target, run.store, request.pair.model))
        plan = with_length(plan_of_build(request, platform, inputs), inputs)
    run = run.making(plan)
    kernels = cpu_kernels(run, plan.platform, is_asked=request.backend.lowering is not None)
    if kernels.lowering != plan.lowering:  # the kernels could not be compiled
        plan = _without_kernels(request, replace(platform, lowering=kernels.lowering), inputs, kernels)
        run = run.making(plan)
    with run.phases("room", "check disk space and memory"):
        warnings = [*plan.warnings, *check_resources(plan, inputs, run.store), *kernels.warnings]
    graphs = compile_graphs(run, plan, inputs)

    def make_plans(num_speculative_tokens: int) -> tuple[Plans, Manifest]:
        drafting = plan.drafting(num_speculative_tokens)
        sources = {name: PlanSource.of(compiled) for name, compiled in graphs.compiled.items()}
        plans = build_plans(run, sources, drafting)
        return plans, engine_manifest(drafting, inputs, graphs, plans, versions | plans.versions())

    plans, manifest = None, engine_manifest(plan, inputs, graphs, None, versions)
    compiled, stages = [kernels.stage] if kernels.stage else [], graphs.stages()
    if plan.makes_plans:
        plans, manifest = make_plans(plan.speculation.num_speculative_tokens)
        compiled, stages = plans.compiled(), plans.stages()
    pieces = EnginePieces(
        stages=stages,
        folders={name: graphs.compiled[name].files.folder or name for name in stages},
        compiled=compiled,
        place_side_files=graphs.place_side_files,
        account=graphs.account(),
        plans=plans,
        make_plans=make_plans if plans else None,
        adopted=() if plans else graphs.adopted(),
        speed=EngineSpeed.of(plan, inputs, graphs),
    )
    return assemble(run, plan, pieces, manifest, warnings, graphs.notes(), resolved_config)


def _without_kernels(
    request: CompileRequest, platform: BuildPlatform, inputs: Inputs, kernels: CpuKernels
) -> BuildPlan:
    """Plan again for ONNX Runtime's own kernels. Raises ``BuildError`` if the request needs the custom kernels."""
    try:
        return plan_of_build(request, platform, inputs)
    except UsageError as error:
        raise BuildError(error.what, why="; ".join([*kernels.warnings, error.why]), fix=error.fix) from None


def _resolve(request: CompileRequest, progress: Progress) -> Resolved:
    """Fetch the checkpoints; the target's alone if the draft method needs no head."""
    pair = request.pair
    if request.headless:
        return resolve_target(pair.model, pair.revision, progress, request.headless)
    return resolve(pair.model, pair.draft, pair.revision, pair.draft_revision, progress)
