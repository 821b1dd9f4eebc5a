"""From a checkpoint pair to an engine folder: resolve, read, make the graphs and plans, choose K, publish."""

from __future__ import annotations

from dataclasses import replace

from ...engines.folder.manifest import Manifest
from ..checkpoints.resolve_names import Resolved, resolve, resolve_target
from ..checkpoints.target_and_drafter import Inputs, read_inputs, require_runner
from ..console.progress import Progress
from ..hardware.packages import export_versions
from ..needs.enough_room import require_room_for
from ..precision.decide_recipe import decide
from ..precision.recipes import Recipe
from ..request.build_platform import BuildPlatform, platform_of
from ..request.experts_form import suited
from ..request.refusals import check_build
from ..request.request import CompileRequest
from ..request.resolved_config import resolved_config
from ..store.made_for import MadeFor
from ..store.stages import StageStore
from .assemble_engine import BuildResult, EnginePieces, assemble
from .cpu_kernels import cpu_kernels
from .engine_manifest import engine_manifest
from .plan_stages import Plans, PlanSource, Spans, build_plans
from .shared_steps import Blueprint, PipelineRun, compile_graphs

_FP8_TAKEN = "the checkpoint is FP8 with scales for its inputs, and so is the engine: --precision bf16 would widen it"


def build(request: CompileRequest, progress: Progress | None = None, store: StageStore | None = None) -> BuildResult:
    """Build ``request.pair.model`` with its drafter, if any is wanted, into the engine folder ``request.out``.

    Raises ``UsageError``, ``EnvironmentProblem`` or ``BuildError``; whatever goes wrong, ``request.out`` is either what
    it was before or the finished engine, and finished steps are reused by the next build.
    """
    check_build(request)
    run = PipelineRun.begin(store or StageStore.default(force=request.force), progress)
    with run.phases("resolve"):
        platform = platform_of(request)
        versions = {platform.backend: platform.version, **export_versions()}
        resolved = _resolve(request, run.progress)
    with run.phases("read", "read checkpoints"):
        inputs = read_inputs(request.sizes, resolved, request.head.over)
        lowering, said = suited(platform.lowering, request.backend.experts, inputs.target.family)
        platform = replace(platform, lowering=lowering)
        require_runner(inputs.head, platform.lowering)
        recipe = decide(
            request.precision, platform.lowering, inputs.target, platform.gpus, keeps_own=True, head=inputs.head
        )
        warnings = [*inputs.warnings, *request.unused(), *said]
        warnings += [_FP8_TAKEN] if request.precision.name is None and recipe.name == "fp8" else []
        request = replace(request, precision=replace(request.precision, name=recipe.name))
    names = resolved.repeatable()
    made_for = MadeFor("build", names["model"] or "", names["draft"] or "", recipe.name, platform.lowering.name)
    run = replace(run, store=replace(run.store, made_for=made_for))
    kernels = cpu_kernels(run, platform, is_asked=request.backend.lowering is not None)
    platform = replace(platform, lowering=kernels.lowering)
    blueprint = _blueprint(inputs, recipe, platform)
    with run.phases("room", "see whether disk and memory are enough"):
        blueprint.require_multiplied()
        product = platform.backend if platform.makes_plans else None
        warnings += require_room_for(request, run.store, blueprint.wanted(request.calibration, product))
    graphs = compile_graphs(run, blueprint, request.calibration, model=request.pair.model)
    asked = request.drafts_asked

    def described(k: int, plans: Plans | None) -> Manifest:
        of_all = versions | (plans.versions() if plans else {})
        return engine_manifest(platform, recipe, inputs, k, asked, graphs, plans, of_all)

    def make_plans(k: int) -> tuple[Plans, Manifest]:
        sources = {name: PlanSource.of(compiled) for name, compiled in graphs.compiled.items()}
        plans = build_plans(run, sources, platform, request.plans, Spans(k, inputs.max_k, inputs.max_seq_len))
        return plans, described(k, plans)

    k, plans = inputs.depth if asked is None else asked, None
    if platform.makes_plans:
        plans, manifest = make_plans(k)
    else:
        manifest = described(k, None)
    compiled = [*plans.compiled()] if plans else [kernels.stage] if kernels.stage else []
    warnings += kernels.warnings
    stages = plans.stages() if plans else graphs.stages()
    account = graphs.account()
    if graphs.ranges:
        from ..precision.calibration import default_limits
        from ..precision.calibration.obtain_ranges import settled

        asked_for = settled(request.calibration, default_limits(platform.lowering))
        request = replace(request, calibration=asked_for)
    pieces = EnginePieces(
        out=request.out,
        stages=stages,
        folders={name: graphs.compiled[name].files.folder or name for name in stages},
        compiled=compiled,
        furnish=lambda assembly: graphs.furnish(assembly, inputs.target.folder),
        account=account,
        plans=plans,
        make_plans=make_plans if plans else None,
        wide=recipe.wide,
        depth=inputs.depth,
        asked=asked,
        looked_up=request.draft == "ngram",
    )
    notes = [*blueprint.warnings(), *account.notes()]
    return assemble(
        run, pieces, platform, manifest, warnings, notes,
        lambda made: resolved_config(request, platform, inputs, made),
    )  # fmt: skip


def _blueprint(inputs: Inputs, recipe: Recipe, platform: BuildPlatform) -> Blueprint:
    lowering = platform.lowering
    # A plan holds its own weights; graphs of ONNX Runtime can lie in one folder and read one file.
    shares = not platform.makes_plans
    return Blueprint(inputs.target, inputs.drafter, recipe, lowering, inputs.cache_length(lowering), shares)


def _resolve(request: CompileRequest, progress: Progress) -> Resolved:
    """Fetch the checkpoints; a drafter that nothing would be drafted with is not."""
    pair = request.pair
    if request.draft != "drafter":
        return resolve_target(pair.model, pair.revision, progress, ngram=request.draft == "ngram")
    return resolve(pair.model, pair.draft, pair.revision, pair.draft_revision, progress)
