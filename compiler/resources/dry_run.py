"""``--dry-run``: the estimate of a build or an export, from the configuration alone. Writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...graphs.lowering import Lowering
from ...graphs.targets import family_for
from ...graphs.targets.skeleton import Skeleton
from ...plugins.errors import BuildError, EnvironmentProblem, UsageError
from ..checkpoints.head_weights import open_head, read_from_target
from ..checkpoints.known_pairs import Local
from ..checkpoints.resolve_names import drafter_source, known_pair, target_config, target_source
from ..checkpoints.target import Target
from ..checkpoints.target_and_drafter import ASSUMED_DEPTH, read_head, require_runner
from ..console.progress import Progress, Quiet
from ..hardware.gpus import RTX_SMS, export_form, is_architecture, sm_names, sm_number
from ..precision.allowed_recipes import available, lowering_for, require_gpus
from ..precision.calibration.devices import require_device
from ..precision.decide_recipe import decide, precision_of, table_of, wide_of, with_drafter
from ..precision.precision_options import CPU
from ..precision.recipes import Recipe, twice_rounded
from ..precision.weight_source import of_target, rounded_again
from ..precision.weights_stored_quantized import StoredFp8
from ..request.build_platform import platform_of
from ..request.experts_form import as_asked, suited
from ..request.refusals import check_build, export_lowering
from ..request.request import ONNXRUNTIME, CompileRequest, ModelRef
from ..store.made_for import MadeFor
from ..store.stages import StageStore
from .check import Need, Outcome, needs_of, refusal_of, tight
from .download import UNKNOWN_SIZE, download_need, forbidden, has_unknown_size
from .estimate import UNKNOWN_HEAD, Estimate, estimate
from .weight_bytes import share_note
from .workload import Workload, calibration_of


@dataclass(frozen=True)
class Decided:
    """What a request comes to before anything is made; ``gpu`` is one whose memory is known.

    ``product`` is the TensorRT that builds plans. ``shares``: whether both graphs will read one embedding, if it is
    one. ``problem`` is why this machine cannot build it, where the plan is for another.
    """

    lowering: Lowering
    recipe: Recipe
    gpu: str | None
    notes: tuple[str, ...]
    product: str | None = None
    shares: bool = False
    problem: EnvironmentProblem | None = None


def estimate_build(request: CompileRequest, progress: Progress | None = None) -> Estimate:
    """The estimate of a build. Raises ``UsageError`` or ``BuildError`` for what cannot be made."""
    progress = progress or Quiet()
    with progress.step("settle backend, GPU, lowering and types"):
        decided = decide_build(request)
    return _estimate(request, decided, progress)


def estimate_export(request: CompileRequest, progress: Progress | None = None) -> Estimate:
    """The estimate of an export, with a verdict for a GPU. Raises what an estimate of a build does."""
    progress = progress or Quiet()
    with progress.step("settle lowering and types"):
        decided = decide_export(request)
    return _estimate(request, decided, progress, is_moved=True)


def decide_build(request: CompileRequest) -> Decided:
    """What a build comes to: on the platform that it would choose, refused as it would be.

    Where this machine cannot build for what was named, the plan is for a machine that can, and says so.
    """
    check_build(request)
    notes: list[str] = []
    asked, problem = request.backend, None
    try:
        platform = platform_of(request)
        lowering, gpus, backend = platform.lowering, platform.gpus, platform.backend
        notes += [platform.lacks] if platform.lacks else []
        if platform.makes_plans and platform.runs_here and request.drafts_asked is None:
            notes.append(
                "K is measured here: where another than the trained depth wins, plans are built and kept twice"
            )
    except EnvironmentProblem as error:
        problem = error
        if not asked.gpus and asked.name is None:
            raise
        gpus = sm_names(asked.gpus)
        sms = [sm_number(gpu) for gpu in gpus]
        backend = asked.name or ("tensorrt-rtx" if set(sms) <= set(RTX_SMS) else "tensorrt")
        lowering = lowering_for(export_form(sms) if backend == "tensorrt" else "tensorrt")
        decide(request.precision, lowering, gpus=gpus, keeps_own=True)
        notes = [f"this machine cannot build it ({error.why or error.what}): the plan is for one that can"]
    verdict, more = _gpu(asked.gpus[0] if asked.gpus else None)
    if len(asked.gpus) > 1:
        verdict, more = None, [f"{', '.join(gpus)}: one GPU by its name, for example b200, gets a verdict"]
    decided = _decided(request, lowering, gpus, [*notes, *more], keeps_own=True)
    product = None if backend == ONNXRUNTIME else backend
    return replace(decided, gpu=verdict, product=product, shares=product is None, problem=problem)


def decide_export(request: CompileRequest) -> Decided:
    """What an export comes to; it is for what full TensorRT builds for the GPU, if one is named."""
    named = request.backend.gpus
    request.sizes.check(fix="leave it out, and it is the depth that the head was trained for")
    lowering, gpus = export_lowering(request), sm_names(named)
    verdict, notes = _gpu(named[0] if len(named) == 1 else None)
    return replace(_decided(request, lowering, gpus, notes, keeps_own=bool(gpus)), gpu=verdict)


def _decided(
    request: CompileRequest, planned: Lowering, gpus: Sequence[str], notes: list[str], *, keeps_own: bool
) -> Decided:
    """Types by the headers of a checkpoint that lies here. Refuses what a build or an export of it refuses."""
    request.calibration.check()
    request.precision.check()
    family = family_for(target_config(request.pair.model, request.pair.revision)[0])
    planned, said = suited(as_asked(planned, request.backend.experts), request.backend.experts, family)
    notes += said
    known = available(planned)
    target = _local_target(request.pair)
    asked = request.precision
    asked = replace(asked, name=precision_of(asked, planned, target, gpus, keeps_own=keeps_own))
    recipe = table_of(asked, planned, wide_of(target.checkpoint if target else None, planned))
    require_gpus(recipe, gpus)
    if asked.name in known:
        if target:
            again = rounded_again(target, recipe, planned)
            notes += [*_lost(target, recipe, planned), *twice_rounded(recipe, target.checkpoint, again)]
        decide(asked, planned, target)
    else:
        notes.append(f"nothing is written in {asked.name} for {planned} ({', '.join(known)} are): this is arithmetic")
    return Decided(planned, recipe, None, tuple(notes))


def _estimate(request: CompileRequest, decided: Decided, progress: Progress, *, is_moved: bool = False) -> Estimate:
    """The estimate for a target and, where its checkpoint lies on this machine, its drafter."""
    model, draft, sizes = request.pair.model, request.pair.draft, request.sizes
    config, origin = target_config(model, request.pair.revision)
    family, target = family_for(config), _local_target(request.pair)
    headless, has_drafter, pair = request.headless, not request.headless, known_pair(model)
    source = drafter_source(model, draft) if has_drafter else None
    head, unknown = None, UNKNOWN_HEAD
    shared: tuple[str, ...] = ()
    if headless:
        unknown = f"none: {headless.help}"
    elif isinstance(source, Local):
        drafter = open_head(source.path)
        drafter = replace(drafter, config=request.head.over(drafter.config))
        head = read_head(drafter, family.describe(config))
        require_runner(head, decided.lowering)
        shared = read_from_target(drafter, head, target) if decided.shares else ()
    elif source is None:
        unknown = "none named"
    elif draft is None and pair and pair.drafter_size:
        unknown = f"{pair.drafter_size}; the rest is {UNKNOWN_HEAD}"
    depth = (head.trained_depth if head else None) or (pair.trained_depth if pair else None) or ASSUMED_DEPTH
    depth = headless.depth if headless else depth
    with progress.step("import torch and transformers"):
        weights = Skeleton(config).weights
    with progress.step("count weights, disk and memory"):
        lowering = decided.lowering
        workload = Workload(
            census=weights,
            recipe=with_drafter(decided.recipe, request.precision, lowering, head),
            lowering=lowering,
            head=head,
            shared=shared,
            product=decided.product,
            calibration=calibration_of(request.calibration, family.text(config), lowering),
        )
        if target and decided.recipe.name in available(lowering):
            workload = workload.found_in(target)
        made_for = MadeFor("", model, "", workload.recipe.name, lowering.name)
        local = target_source(model, request.pair.revision)
        names = [str(local.path)] if isinstance(local, Local) else []
        disk = workload.disk(StageStore.default(force=request.force), request.out, made_for, names, is_moved=is_moved)
        download = download_need(request.pair)
        needs = needs_of(disk, workload.work, download)
    found = estimate(
        model,
        config,
        origin,
        workload,
        max_seq_len=sizes.max_seq_len,
        num_speculative_tokens=max(depth, sizes.num_speculative_tokens or 0) if request.drafts else 0,
        drafts_asked=request.drafts_asked,
        has_drafter=has_drafter,
        gpu=decided.gpu,
        head_note="" if head else unknown,
        notes=(*decided.notes, *request.unused(), *([UNKNOWN_SIZE] if has_unknown_size(request.pair) else [])),
        progress=progress,
    )
    problem = decided.problem or forbidden(request.pair, download)
    outcome = Outcome.of(problem) if problem else _outcome(request, found, needs)
    return replace(found, disk=disk, needs=needs, outcome=outcome, notes=(*found.notes, *tight(needs)))


def _outcome(request: CompileRequest, found: Estimate, needs: Sequence[Need]) -> Outcome:
    """How the same command ends without ``--dry-run``, as far as it is known before it begins."""
    if found.refusal:
        return Outcome(BuildError.exit_code, found.refusal)
    if found.work.calibration:
        try:
            require_device(request.calibration.device or CPU)
        except EnvironmentProblem as problem:
            return Outcome.of(problem)
    return Outcome.of(refusal_of(needs), ignored=request.ignore_limits)


def _local_target(pair: ModelRef) -> Target | None:
    """The target where its weights lie on this machine."""
    source = target_source(pair.model, pair.revision)
    if isinstance(source, Local) and (source.path.is_file() or any(source.path.glob("*.safetensors"))):
        return Target.open(source.path)
    return None


def _lost(target: Target, recipe: Recipe, lowering: Lowering) -> list[str]:
    """What an FP8 checkpoint lacks for the recipe. Raises ``BuildError`` for one that it cannot be made of."""
    source = of_target(target, recipe, lowering) if recipe.quantized_type else None
    if not isinstance(source, StoredFp8):
        return []
    return share_note("the weights", source.selection.share_without(source.storage()[1]), recipe)


def _gpu(name: str | None) -> tuple[str | None, list[str]]:
    """The GPU to give a verdict for, and notes. Many GPUs have an architecture, each with its own memory."""
    if name is None:
        return None, []
    if "," in name:
        raise UsageError(f"--gpu {name} names several GPUs", why="a plan is for one", fix="name one, or plan each")
    if is_architecture(name):
        return None, [f"{name} says nothing of memory: a GPU's name, for example b200, gets a verdict"]
    return name, []
