"""``--dry-run``: the forecast of a build or an export, from the configuration alone. Writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...graphs.drafters import DrafterSpec
from ...graphs.lowering import Lowering
from ...graphs.targets import family_for
from ...graphs.targets.skeleton import Skeleton
from ...graphs.targets.weight_roles import RoledWeight
from ...plugins.errors import BuildError, EnvironmentProblem, UsageError
from ..checkpoints.head_weights import open_head, read_from_target
from ..checkpoints.known_pairs import Local
from ..checkpoints.resolve_names import drafter_source, known_pair, target_config, target_source
from ..checkpoints.target import Target
from ..checkpoints.target_and_drafter import ASSUMED_DEPTH, NGRAM_DEPTH, read_head, require_runner
from ..console.printing import emit
from ..console.progress import Progress, Quiet
from ..hardware.gpus import RTX_SMS, export_form, is_architecture, sm_names, sm_number
from ..needs.disk import Disk
from ..needs.room import Need, needs_of, refusal_of, tight
from ..needs.wanted import Wanted, calibration_of, of_checkpoint
from ..needs.weight_bytes import share_note
from ..precision.allowed_recipes import available, lowering_for, require_gpus
from ..precision.calibration.devices import require_device
from ..precision.decide_recipe import decide, precision_of, table_of, wide_of, with_drafter
from ..precision.precision_options import CPU
from ..precision.recipes import Recipe, twice_rounded
from ..precision.weight_source import of_target
from ..precision.weights_stored_quantized import StoredFp8
from ..request.build_platform import platform_of
from ..request.experts_form import as_asked, suited
from ..request.refusals import check_build, export_lowering
from ..request.request import ONNXRUNTIME, CompileRequest, ModelRef
from ..store.made_for import MadeFor
from ..store.stages import StageStore
from .download import UNKNOWN_SIZE, download_need, forbidden, has_unknown_size
from .forecast import UNKNOWN_HEAD, make_forecast
from .printing import render
from .record import Forecast, Outcome


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


def print_forecast(forecast: Forecast, *, as_json: bool) -> None:
    """Print a forecast as a table or as JSON."""
    if as_json:
        emit(forecast.as_json())
    else:
        print(render(forecast))


def forecast_build(request: CompileRequest, progress: Progress | None = None) -> Forecast:
    """The forecast of a build. Raises ``UsageError`` or ``BuildError`` for what cannot be made."""
    progress = progress or Quiet()
    with progress.step("settle backend, GPU, lowering and types"):
        decided = decide_build(request)
    return _forecast(request, decided, progress)


def forecast_export(request: CompileRequest, progress: Progress | None = None) -> Forecast:
    """The forecast of an export, with a verdict for a GPU. Raises what a forecast of a build does."""
    progress = progress or Quiet()
    with progress.step("settle lowering and types"):
        decided = decide_export(request)
    return _forecast(request, decided, progress, is_moved=True)


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
    lowering, gpus = export_lowering(request), sm_names(named)
    verdict, notes = _gpu(named[0] if len(named) == 1 else None)
    return replace(_decided(request, lowering, gpus, notes, keeps_own=bool(gpus)), gpu=verdict)


def _twice(target: Target, recipe: Recipe, planned: Lowering) -> list[str]:
    from ..precision.weight_source import rounded_again

    return twice_rounded(recipe, target.checkpoint, rounded_again(target, recipe, planned))


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
        notes += [*_lost(target, recipe, planned), *_twice(target, recipe, planned)] if target else []
        decide(asked, planned, target)
    else:
        notes.append(f"nothing is written in {asked.name} for {planned} ({', '.join(known)} are): this is arithmetic")
    return Decided(planned, recipe, None, tuple(notes))


def _forecast(request: CompileRequest, decided: Decided, progress: Progress, *, is_moved: bool = False) -> Forecast:
    """The forecast for a target and, where its checkpoint lies on this machine, its drafter."""
    model, draft, sizes = request.pair.model, request.pair.draft, request.sizes
    config, origin = target_config(model, request.pair.revision)
    has_drafter, pair = request.draft == "drafter", known_pair(model)
    source = drafter_source(model, draft) if has_drafter else None
    head, unknown = None, UNKNOWN_HEAD
    shared: tuple[str, ...] = ()
    if not has_drafter:
        unknown = f"none: {'plain decoding' if request.draft == 'none' else 'drafts are looked up in the text'}"
    elif isinstance(source, Local):
        drafter = open_head(source.path)
        drafter = replace(drafter, config=request.head.over(drafter.config))
        head = read_head(drafter, family_for(config).describe(config))
        require_runner(head, decided.lowering)
        shared = read_from_target(drafter, head, _local_target(request.pair)) if decided.shares else ()
    elif source is None:
        unknown = "none named"
    elif draft is None and pair and pair.drafter_size:
        unknown = f"{pair.drafter_size}; the rest is {UNKNOWN_HEAD}"
    depth = (head.trained_depth if head else None) or (pair.trained_depth if pair else None) or ASSUMED_DEPTH
    depth = depth if has_drafter else NGRAM_DEPTH
    with progress.step("import torch and transformers"):
        skeleton = Skeleton(config)
        weights = skeleton.weights
    with progress.step("count weights, disk and memory"):
        wanted = _wanted(request, decided, weights, head, shared)
        disk = _disk(request, wanted, is_moved=is_moved)
        download = download_need(request.pair)
    forecast = make_forecast(
        model,
        config,
        origin,
        wanted,
        max_seq_len=sizes.max_seq_len,
        num_speculative_tokens=0 if request.draft == "none" else max(depth, sizes.num_speculative_tokens or 0),
        drafts_asked=0 if request.draft == "none" else sizes.num_speculative_tokens,
        has_drafter=has_drafter,
        gpu=decided.gpu,
        head_note="" if head else unknown,
        notes=(*decided.notes, *request.unused(), *([UNKNOWN_SIZE] if has_unknown_size(request.pair) else [])),
        progress=progress,
    )
    needs = needs_of(disk, wanted.work, download)
    forecast = replace(forecast, notes=(*forecast.notes, *tight(needs)))
    outcome = _outcome(request, decided, forecast, needs, forbidden(request.pair, download))
    return replace(forecast, disk=disk, needs=needs, outcome=outcome)


def _outcome(
    request: CompileRequest,
    decided: Decided,
    forecast: Forecast,
    needs: Sequence[Need],
    offline: EnvironmentProblem | None,
) -> Outcome:
    """How the same command ends without ``--dry-run``, as far as it is known before it begins."""
    if problem := decided.problem or offline:
        return Outcome.of(problem)
    if forecast.refusal:
        return Outcome(BuildError.exit_code, forecast.refusal)
    if forecast.work.calibration:
        try:
            require_device(request.calibration.device or CPU)
        except EnvironmentProblem as problem:
            return Outcome.of(problem)
    return Outcome.of(refusal_of(needs), ignored=request.ignore_limits)


def _wanted(
    request: CompileRequest,
    decided: Decided,
    census: tuple[RoledWeight, ...],
    head: DrafterSpec | None,
    shared: tuple[str, ...],
) -> Wanted:
    """What a build or an export would make, by what a checkpoint that lies here holds."""
    config = target_config(request.pair.model, request.pair.revision)[0]
    wanted = Wanted(
        census=census,
        recipe=with_drafter(decided.recipe, request.precision, decided.lowering, head),
        lowering=decided.lowering,
        head=head,
        shared=shared,
        product=decided.product,
        calibration=calibration_of(request.calibration, family_for(config).text(config), decided.lowering),
    )
    target = _local_target(request.pair)
    is_written = decided.recipe.name in available(decided.lowering)
    return of_checkpoint(wanted, target) if target and is_written else wanted


def _disk(request: CompileRequest, wanted: Wanted, *, is_moved: bool) -> Disk:
    source = target_source(request.pair.model, request.pair.revision)
    names = [str(source.path)] if isinstance(source, Local) else []
    made_for = MadeFor("", request.pair.model, "", wanted.recipe.name, wanted.lowering.name)
    return wanted.disk(StageStore.default(force=request.force), request.out, made_for, names, is_moved=is_moved)


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
