"""``--dry-run``: the forecast of a build or an export, from the configuration alone. Writes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...graphs.drafters import DrafterSpec
from ...graphs.drafters.tensor_layout import EMBEDDING
from ...graphs.lowering import Lowering
from ...graphs.targets import family_for
from ...plugins.errors import EnvironmentProblem, UsageError
from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.head_weights import HeadWeights, open_head
from ..checkpoints.known_pairs import Local
from ..checkpoints.resolve_names import drafter_source, known_pair, target_config, target_source
from ..checkpoints.target import Target
from ..checkpoints.target_and_drafter import ASSUMED_DEPTH, NGRAM_DEPTH, read_head, require_runner
from ..console.printing import emit
from ..hardware.gpus import RTX_SMS, export_form, is_architecture, sm_names, sm_number
from ..precision.allowed_recipes import available, lowering_for, require_gpus
from ..precision.decide_recipe import decide, precision_of, table_of, wide_of, with_drafter
from ..precision.recipes import Recipe, twice_rounded
from ..precision.weight_source import kept_blocks, of_target
from ..precision.weights_stored_quantized import StoredFp8
from ..request.build_platform import platform_of
from ..request.experts_form import as_asked, suited
from ..request.refusals import check_build, export_lowering
from ..request.request import ONNXRUNTIME, CompileRequest, ModelRef
from ..store.stages import StageStore
from .disk import disk_of
from .forecast import UNKNOWN_HEAD, make_forecast
from .printing import render
from .record import Forecast
from .weight_bytes import share_note


@dataclass(frozen=True)
class Decided:
    """What a request comes to before anything is made; ``gpu`` is one whose memory is known.

    ``plans``: whether TensorRT builds plans. ``shares``: whether both graphs will read one embedding, if it is one.
    ``kept``: the weights that are taken as the blocks of a GGUF file that they are stored in.
    """

    lowering: Lowering
    recipe: Recipe
    gpu: str | None
    notes: tuple[str, ...]
    plans: bool = False
    shares: bool = False
    kept: Mapping[str, str] = field(default_factory=dict)


def print_forecast(forecast: Forecast, *, as_json: bool) -> None:
    """Print a forecast as a table or as JSON."""
    if as_json:
        emit(forecast.as_json())
    else:
        print(render(forecast))


def forecast_build(request: CompileRequest) -> Forecast:
    """The forecast of a build. Raises ``UsageError`` or ``BuildError`` for what cannot be made."""
    forecast = _forecast(request, decided := decide_build(request))
    return _with_disk(forecast, request, has_plans=decided.lowering.is_tensorrt)


def forecast_export(request: CompileRequest) -> Forecast:
    """The forecast of an export, with a verdict for a GPU. Raises what a forecast of a build does."""
    return _with_disk(_forecast(request, decide_export(request)), request, is_moved=True)


def decide_build(request: CompileRequest) -> Decided:
    """What a build comes to: on the platform that it would choose, refused as it would be.

    Where this machine cannot build for what was named, the plan is for a machine that can, and says so.
    """
    check_build(request)
    notes: list[str] = []
    asked = request.backend
    try:
        platform = platform_of(request)
        lowering, gpus, backend = platform.lowering, platform.gpus, platform.backend
        notes += [platform.lacks] if platform.lacks else []
    except EnvironmentProblem as error:
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
    has_plans = backend != ONNXRUNTIME
    return replace(decided, gpu=verdict, plans=has_plans, shares=not has_plans)


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
    kept = kept_blocks(target, recipe, planned) if target and asked.name in known else {}
    return Decided(planned, recipe, None, tuple(notes), kept=kept)


def _forecast(request: CompileRequest, decided: Decided) -> Forecast:
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
        shared = _shared(drafter, head, request.pair) if decided.shares else ()
    elif source is None:
        unknown = "none named"
    elif draft is None and pair and pair.drafter_size:
        unknown = f"{pair.drafter_size}; the rest is {UNKNOWN_HEAD}"
    depth = (head.trained_depth if head else None) or (pair.trained_depth if pair else None) or ASSUMED_DEPTH
    depth = depth if has_drafter else NGRAM_DEPTH
    return make_forecast(
        model,
        config,
        origin,
        with_drafter(decided.recipe, request.precision, decided.lowering, head),
        decided.lowering,
        max_seq_len=sizes.max_seq_len,
        num_speculative_tokens=0 if request.draft == "none" else max(depth, sizes.num_speculative_tokens or 0),
        has_drafter=has_drafter,
        gpu=decided.gpu,
        head=head,
        head_note="" if head else unknown,
        shared=shared,
        notes=(*decided.notes, *request.unused()),
        plans=decided.plans,
        kept=decided.kept,
    )


def _shared(drafter: Checkpoint, head: DrafterSpec, pair: ModelRef) -> tuple[str, ...]:
    """The weights of a head that are the target's, as far as can be told without the target's."""
    if EMBEDDING in head.shared:
        return (EMBEDDING,)
    target = _local_target(pair)
    return (EMBEDDING,) if target and HeadWeights(drafter, head, target).has_targets_embedding else ()


def _with_disk(
    forecast: Forecast, request: CompileRequest, *, has_plans: bool = False, is_moved: bool = False
) -> Forecast:
    """Return the forecast with what its weights take of the disks."""
    written = forecast.weight_bytes + (forecast.drafter.bytes or 0)
    disk = disk_of(StageStore.default().root, request.out, written, has_plans=has_plans, is_moved=is_moved)
    return replace(forecast, disk=disk)


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
