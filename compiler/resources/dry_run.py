"""``--dry-run``: the estimate of a build or an export, from the configuration alone. Writes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...engines.folder.records import Speculation
from ...graphs.drafters import DrafterSpec
from ...graphs.lowering import Lowering
from ...graphs.targets import family_for
from ...graphs.targets.skeleton import Skeleton
from ...plugins.errors import BuildError, EnvironmentProblem, UsageError
from ...plugins.number_formats import keeps_blocks
from ...plugins.tensorrt.products import PRODUCTS
from ..checkpoints.formats.mxfp4 import blocks_of_config
from ..checkpoints.head_weights import open_head, read_from_target
from ..checkpoints.known_pairs import Local, Wheel
from ..checkpoints.resolve_names import drafter_source, known_pair, target_config, target_source
from ..checkpoints.target import Target
from ..checkpoints.target_and_drafter import ASSUMED_DEPTH, USUAL_LENGTH, read_head
from ..console.progress import Progress, Quiet
from ..hardware.gpus import is_architecture, sm_names
from ..hardware.machine import Machine
from ..precision.allowed_recipes import available, require_gpus
from ..precision.calibration.calibration_options import CPU
from ..precision.calibration.devices import require_device
from ..precision.decide_recipe import (
    decide,
    precision_of,
    precision_of_blocks,
    stored_experts,
    table_of,
    wide_of,
    with_drafter,
)
from ..precision.recipes import Recipe, requantization_notes
from ..precision.weight_selection import candidates_of
from ..precision.weight_source import of_target, requantized
from ..precision.weights_stored_quantized import StoredFp8
from ..request.build_plan import BuildPlan, Command, platform_of_graphs
from ..request.build_platform import BuildPlatform, lowering_of, platform_of
from ..request.choose_backend import product_for
from ..request.expert_lowering import lowering_with_experts, select_expert_lowering
from ..request.refusals import check_build, check_options_of_absent_head
from ..request.request import BackendOptions, CompileRequest, ModelRef
from ..store.stages import StageStore
from .check import Need, Outcome, needs_of, possible_shortages, refusal_of
from .download import UNKNOWN_SIZE, download_need, forbidden, has_unknown_size
from .estimate import UNKNOWN_HEAD, Estimate, estimate
from .sequence_length import decided_length
from .speed.model_speed import speed_question
from .weight_bytes import share_note
from .workload import Workload, calibration_of


@dataclass(frozen=True)
class Decided:
    """The plan of a dry run, made before anything is downloaded. ``gpu`` is a GPU with a known memory size.

    ``problem`` is the reason why this machine cannot build it, if the plan is for another machine.
    """

    plan: BuildPlan
    head: PlannedHead
    gpu: str | None = None
    problem: EnvironmentProblem | None = None


@dataclass(frozen=True)
class PlannedHead:
    """A head: its ``spec`` if its checkpoint is local, else ``instead``, a note on what is known."""

    spec: DrafterSpec | None = None
    instead: str = ""
    shared: tuple[str, ...] = ()  # weights read from the target's file


def estimate_build(request: CompileRequest, progress: Progress | None = None) -> Estimate:
    """Estimate a build. Raises ``UsageError`` or ``BuildError`` for an impossible one."""
    progress = progress or Quiet()
    with progress.step("choose backend, GPU, lowering and types"):
        decided = decide_build(request)
    return _estimate(decided, progress)


def estimate_export(request: CompileRequest, progress: Progress | None = None) -> Estimate:
    """Estimate an export, with a verdict for a GPU. Raises what ``estimate_build`` does."""
    progress = progress or Quiet()
    with progress.step("choose lowering and types"):
        decided = decide_export(request)
    return _estimate(decided, progress)


def decide_build(request: CompileRequest) -> Decided:
    """Plan a build on the platform that it would choose, with the same errors.

    If this machine cannot build for the named platform, the plan is for a machine that can, with a note.
    """
    check_build(request)
    notes: list[str] = []
    options, problem = request.backend, None
    try:
        platform = platform_of(request)
        notes += [platform.missing] if platform.missing else []
        if platform.makes_plans and platform.runs_here and request.requested_drafts is None:
            notes.append(
                "the build measures K on this machine; if the fastest K is not the trained depth, plans are built twice"
            )
    except EnvironmentProblem as error:
        problem = error
        if not options.gpus and options.name is None:
            raise
        platform = _platform_elsewhere(options)
        decide(request.precision, platform.lowering, gpus=platform.gpus, keeps_own=True)
        notes = [
            f"this machine cannot build this engine ({error.why or error.what}); the estimates are for a machine "
            "that can build it"
        ]
    verdict, more = _gpu(options.gpus[0] if options.gpus else None)
    if len(options.gpus) > 1:
        verdict, more = None, ["to check whether the engine fits, specify a single GPU, such as --gpu b200"]
    plan, head = _plan("build", request, platform, [*notes, *more], keeps_own=True)
    return Decided(plan, head, verdict, problem)


def decide_export(request: CompileRequest) -> Decided:
    """Plan an export; if a GPU is named, for the form that TensorRT builds for it."""
    gpus = request.backend.gpus
    request.sizes.check(fix="omit --num-speculative-tokens to use the trained depth of the head")
    check_options_of_absent_head(request)
    platform = platform_of_graphs(request)
    verdict, notes = _gpu(gpus[0] if len(gpus) == 1 else None)
    plan, head = _plan("export", request, platform, notes, keeps_own=bool(platform.gpus))
    return Decided(plan, head, verdict)


def _platform_elsewhere(options: BackendOptions) -> BuildPlatform:
    """Return the platform of a machine that has the GPUs and the backend."""
    gpus = sm_names(options.gpus)
    product = PRODUCTS[options.name] if options.name else product_for(gpus, Machine())
    return BuildPlatform(product.name, "", gpus, lowering_of(product, gpus), runs_here=False)


def _plan(
    command: Command, request: CompileRequest, platform: BuildPlatform, notes: list[str], *, keeps_own: bool
) -> tuple[BuildPlan, PlannedHead]:
    """Make the plan, with types from the headers of a local checkpoint. Raises what the build or export raises."""
    request.calibration.check()
    request.precision.check()
    model, options = request.pair.model, request.precision
    config = target_config(model, request.pair.revision)[0]
    base_lowering = lowering_with_experts(platform.lowering, request.backend.experts)
    target = _local_target(request.pair)
    stored = stored_experts(target) if target else blocks_of_config(config)
    lowering, warnings = select_expert_lowering(
        base_lowering, request.backend.experts, family_for(config), config, stored
    )
    notes += warnings
    known = available(lowering)
    remaining = _remaining_blocks(request.pair)
    own = precision_of_blocks(remaining, lowering) if options.name is None else None
    name = own or precision_of(options, lowering, target, platform.gpus, keeps_own=keeps_own)
    options = replace(options, name=name)
    recipe = table_of(options, lowering, wide_of(target.checkpoint if target else None, lowering))
    recipe = recipe.keeping_experts(stored, lowering)
    if recipe.keeps_blocks and remaining:
        notes.append(f"the figures assume that all blocks of the GGUF file are {remaining}, the type of most of them")
    require_gpus(recipe, platform.gpus)
    if options.name in known:
        decide(options, lowering, target)
        if target:
            again = requantized(target, recipe, lowering)
            notes += [*_lost(target, recipe, lowering), *requantization_notes(recipe, target.checkpoint, again)]
    else:
        notes.append(f"{lowering} does not support {options.name} (only {', '.join(known)}); this build would fail")
    plan = BuildPlan(
        command=command,
        request=request,
        platform=replace(platform, lowering=lowering),
        recipe=recipe,
        speculation=Speculation(0, 0, None),
        max_seq_len=request.sizes.max_seq_len or USUAL_LENGTH,
        names={"model": model},
        warnings=(*notes, *request.unused()),
    )
    head = _head(plan, config, target)
    recipe = with_drafter(recipe, request.precision, lowering, head.spec)
    return replace(plan, recipe=recipe, speculation=_speculation(request, head.spec)), head


def _head(plan: BuildPlan, config: Mapping[str, Any], target: Target | None) -> PlannedHead:
    """Return the head if its checkpoint is local, else a note on what is known of it."""
    request, pair = plan.request, known_pair(plan.request.pair.model)
    if request.headless:
        return PlannedHead(instead=f"none: {request.headless.help}")
    source = drafter_source(request.pair.model, request.pair.draft)
    if isinstance(source, Local):
        drafter = open_head(source.path)
        drafter = replace(drafter, config=request.head.over(drafter.config))
        spec = read_head(drafter, family_for(config).describe(config))
        return PlannedHead(spec, shared=read_from_target(drafter, spec, target) if plan.shares else ())
    if source is None:
        return PlannedHead(instead="none given")
    if request.pair.draft is None and pair and pair.drafter_size:
        return PlannedHead(instead=f"{pair.drafter_size}; the rest is {UNKNOWN_HEAD}")
    return PlannedHead(instead=UNKNOWN_HEAD)


def _speculation(request: CompileRequest, head: DrafterSpec | None) -> Speculation:
    """Return the number of drafts per round, from the head, the registry or the draft method."""
    if not request.drafts:
        return Speculation(0, 0, None)
    pair, requested = known_pair(request.pair.model), request.requested_drafts
    trained = (head.trained_depth if head else None) or (pair.trained_depth if pair else None)
    depth = request.headless.depth if request.headless else trained or ASSUMED_DEPTH
    return Speculation(
        depth if requested is None else requested, max(depth, requested or 0), trained, adapts=requested is None
    )


def _estimate(decided: Decided, progress: Progress) -> Estimate:
    """Estimate a target and, if its checkpoint is local, its drafter."""
    plan, head, request = decided.plan, decided.head, decided.plan.request
    model, lowering = request.pair.model, plan.lowering
    config, origin = target_config(model, request.pair.revision)
    target = _local_target(request.pair)
    with progress.step("import torch and transformers"):
        weights = Skeleton(config).weights
    with progress.step("count weights, disk and memory"):
        workload = Workload(
            census=weights,
            recipe=plan.recipe,
            lowering=lowering,
            head=head.spec,
            shared=head.shared,
            product=plan.platform.backend if plan.makes_plans else None,
            calibration=calibration_of(request.calibration, family_for(config).text(config), lowering),
        )
        if target and plan.recipe.name in available(lowering):
            workload = workload.found_in(target)
        elif plan.recipe.keeps_blocks and (kind := _remaining_blocks(request.pair) or blocks_of_config(config)):
            every = candidates_of(weights, plan.recipe)
            own = [name for name, each in every.items() if keeps_blocks(plan.recipe.precision(each.role))]
            workload = replace(workload, kept_blocks=dict.fromkeys(own, kind))
        local = target_source(model, request.pair.revision)
        names = [str(local.path)] if isinstance(local, Local) else []
        store, stage_origin = StageStore.default(force=request.force), replace(plan.stage_origin(), command="")
        disk = workload.disk(store, request.out, stage_origin, names, is_moved=plan.is_moved)
        download = download_need(request.pair)
        needs = needs_of(disk, workload.work, download)
    spec, text = family_for(config).describe(config), family_for(config).text(config)
    length = decided_length(plan, spec, text, workload)
    chosen = [length.note] if length.why else []
    if length.why and not head.spec and not request.headless:
        chosen.append("max_seq_len does not include the drafter, whose size is unknown until it is downloaded")
    found = estimate(
        model,
        config,
        origin,
        workload,
        max_seq_len=length.tokens,
        rows=plan.max_batch_size,
        speculation=plan.speculation,
        has_drafter=not request.headless,
        gpu=decided.gpu,
        head_note=head.instead,
        speed=speed_question(request, plan.speculation, head.spec),
        notes=(*chosen, *plan.warnings, *([UNKNOWN_SIZE] if has_unknown_size(request.pair) else [])),
        progress=progress,
    )
    problem = decided.problem or forbidden(request.pair, download)
    outcome = Outcome.of(problem) if problem else _outcome(request, found, needs)
    return replace(found, disk=disk, needs=needs, outcome=outcome, notes=(*found.notes, *possible_shortages(needs)))


def _outcome(request: CompileRequest, found: Estimate, needs: Sequence[Need]) -> Outcome:
    """Return the expected outcome of the same command without ``--dry-run``."""
    if found.refusal:
        return Outcome(BuildError.exit_code, found.refusal)
    if found.work.calibration:
        try:
            require_device(request.calibration.device or CPU)
        except EnvironmentProblem as problem:
            return Outcome.of(problem)
    return Outcome.of(refusal_of(needs), ignored=request.ignore_limits)


def _local_target(pair: ModelRef) -> Target | None:
    """Return the target if its weights are local."""
    source = target_source(pair.model, pair.revision)
    if isinstance(source, Local) and (source.path.is_file() or any(source.path.glob("*.safetensors"))):
        return Target.open(source.path)
    return None


def _lost(target: Target, recipe: Recipe, lowering: Lowering) -> list[str]:
    """Return notes on what an FP8 checkpoint lacks for the recipe. Raises ``BuildError`` if it cannot be built."""
    source = of_target(target, recipe, lowering) if recipe.quantized_type else None
    if not isinstance(source, StoredFp8):
        return []
    return share_note("the weights", source.selection.share_without(source.storage()[1]), recipe)


def _remaining_blocks(pair: ModelRef) -> str:
    """Return the block type of most weights of a GGUF file that a build would download; empty for any other target."""
    source = target_source(pair.model, pair.revision)
    return source.stored if isinstance(source, Wheel) else ""


def _gpu(name: str | None) -> tuple[str | None, list[str]]:
    """Return the GPU to check, and notes. An architecture has many GPUs with different memory sizes."""
    if name is None:
        return None, []
    if "," in name:
        raise UsageError(
            f"--gpu {name} names several GPUs", why="a dry run covers only one GPU", fix="specify one at a time"
        )
    if is_architecture(name):
        return None, [f"{name} does not determine the GPU memory; specify a GPU, such as --gpu b200, to check the fit"]
    return name, []
