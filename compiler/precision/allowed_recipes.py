"""Which tables of types a backend and its GPUs can run, and for the others which legal one is nearest."""

from __future__ import annotations

from collections.abc import Sequence

from ...graphs.lowering import CPU, LOWERINGS, ORT, Lowering
from ...plugins.errors import UsageError, nearest
from ...plugins.number_formats import NUMBER_FORMATS, quantized_formats, wide_formats
from ..hardware.gpus import RTX_SMS, sm_name, supports
from .recipes import RECIPES, Recipe, is_calibrated_cache


def lowering_for(name: str) -> Lowering:
    """The lowering that ``--for`` names. Raises ``UsageError`` naming those that there are."""
    if name not in LOWERINGS:
        raise UsageError(
            f"--for {name} does not exist", why=f"it is one of {', '.join(LOWERINGS)}", fix="try --for ort"
        )
    return LOWERINGS[name]


def available(lowering: Lowering) -> tuple[str, ...]:
    """The recipes that a lowering has, the one for which nothing was asked first."""
    return *lowering.wide_types, *_quantized(lowering)


def require_known(precision: str | None) -> None:
    """Raise ``UsageError`` for a recipe that does not exist; None is left to the build."""
    if precision is not None and precision not in RECIPES:
        raise UsageError(
            f"the precision {precision!r} does not exist",
            why=f"it is one of {', '.join(RECIPES)}",
            fix=_choice("use --precision", precision, tuple(RECIPES)),
        )


def require_legal(recipe: Recipe, lowering: Lowering, gpus: Sequence[str] = (), *, wides: Sequence[str] = ()) -> None:
    """Raise ``UsageError``, with the nearest legal choice, for a table that ``lowering`` or a GPU (``sm_120``) lacks.

    ``wides`` are what the wide type may be before a checkpoint was read; none where it is the recipe's.
    """
    wides = wides or (recipe.wide,)
    known = available(lowering)
    if recipe.name not in known:
        raise _refused(
            f"the precision {recipe.name!r} is not available with {lowering.backend}",
            why_not(recipe.name, tensorrt=lowering.is_tensorrt),
            known[0] if lowering is ORT else "fp16 or bf16",
        )
    if recipe.exclude and not recipe.quantized_type:
        raise UsageError(
            f"--exclude {recipe.exclude[0]!r} has nothing to exclude from",
            why=f"every weight of a target in {recipe.name} is wide",
            fix="leave it out, or add --precision int8 or another narrow one",
        )
    _require_drafter(recipe, lowering, wides)
    require_gpus(recipe, gpus)
    _require_lm_head(recipe, lowering, gpus, wides)
    _require_caches(recipe, lowering, gpus, wides)


def why_not(precision: str, *, tensorrt: bool, it: str = "it") -> str:
    """Why TensorRT, or ONNX Runtime, has no recipe of that name, which sentences call ``it``."""
    kind = NUMBER_FORMATS[precision]
    if kind.is_quantized:
        return f"{'TensorRT' if tensorrt else 'ONNX Runtime'} neither multiplies in {kind.title} nor emulates it"
    return f"TensorRT has no attention kernel for {it}" if tensorrt else "on a CPU it computes in fp32"


def wide_names() -> tuple[str, ...]:
    """The names of the formats that a whole model can be in."""
    return tuple(each.name for each in wide_formats())


def _quantized(lowering: Lowering) -> tuple[str, ...]:
    return tuple(each.name for each in quantized_formats(tensorrt=lowering.is_tensorrt))


def require_gpus(recipe: Recipe, gpus: Sequence[str]) -> None:
    """Raise ``UsageError``, with what can be had instead, for a type that a GPU (``sm_120``) does not compute with."""
    asked = [
        ("--precision", recipe.weights),
        ("--precision", recipe.experts),
        ("--lm-head-precision", recipe.lm_head),
        ("--draft-precision", recipe.drafter),
        ("--kv-cache-dtype", recipe.kv_cache),
    ]
    for flag, kind in asked:
        lacking = [gpu for gpu in gpus if not supports(gpu, kind)]
        if lacking:
            raise UsageError(
                f"{flag} {kind} is not available on {', '.join(lacking)}",
                why=_why(kind),
                fix=f"{_instead(flag, kind, gpus)}, or build {_elsewhere(kind)}",
            )


def _instead(flag: str, kind: str, gpus: Sequence[str]) -> str:
    """The nearest that all of these GPUs have. Which wide type a target has is its checkpoint's to say."""
    between = [each for each in NUMBER_FORMATS[kind].instead if all(supports(gpu, each) for gpu in gpus)][:1]
    if flag == "--precision":
        return f"use {flag} {', '.join([*between, 'bf16 or fp16'])}"
    return (
        f"use {flag} {between[0]}, or leave it out" if between and flag != "--kv-cache-dtype" else f"leave {flag} out"
    )


def _elsewhere(kind: str) -> str:
    on = NUMBER_FORMATS[kind].tensorrt
    if on is None:
        return "with --backend onnxruntime"
    if not any(map(on.runs_on, RTX_SMS)):
        return f"with --backend tensorrt on a host that has {sm_name(on.only[0])}"
    return "for another GPU, for example --gpu sm_120"


def _why(kind: str) -> str:
    title, on = NUMBER_FORMATS[kind].title, NUMBER_FORMATS[kind].tensorrt
    if on is None:
        return f"TensorRT does not multiply in {title}"
    if on.only:
        only = ", ".join(map(sm_name, on.only))
        return f"TensorRT multiplies in {title} on {only} only; elsewhere it would write the weights out wide"
    return f"GPUs multiply in {title} from {sm_name(on.since)} on"


def _require_lm_head(recipe: Recipe, lowering: Lowering, gpus: Sequence[str], wides: Sequence[str]) -> None:
    known = _quantized(lowering)
    kind, kinds = recipe.lm_head, [each for each in known if all(supports(gpu, each) for gpu in gpus)]
    if kind in known or kind in wides:
        return
    raise UsageError(
        f"--lm-head-precision {kind} cannot be had with {_model(wides)}",
        why=f"it is {', '.join(known)}, or the type of what the model computes in",
        fix=_choice("--lm-head-precision", kind, kinds),
    )


def _require_caches(recipe: Recipe, lowering: Lowering, gpus: Sequence[str], wides: Sequence[str]) -> None:
    kind = recipe.kv_cache
    kinds = [each for each in lowering.cache_types if each in _on_cpu() or all(supports(gpu, each) for gpu in gpus)]
    if kind in wides or kind in kinds:
        return
    if is_calibrated_cache(kind):
        on_cpu = f"use --kv-cache-dtype {kinds[0]}" if kinds else f"leave --kv-cache-dtype out ({recipe.wide})"
        raise UsageError(
            f"--kv-cache-dtype {kind} is not available with {lowering.backend}",
            why=f"its attention kernel reads keys and values in {' or '.join([recipe.wide, *kinds])}",
            fix=f"{on_cpu}, or build for a GPU from {_first(kind)} on",
        )
    if kind in _on_cpu() and not lowering.is_tensorrt:
        raise UsageError(
            f"--kv-cache-dtype {kind} is not available with the lowering {lowering}",
            why=f"attention kernels of ONNX Runtime read keys and values as they compute, in {recipe.wide}; ours, "
            "which a C++ compiler is needed for, read others",
            fix=f"use the lowering {CPU}, or leave --kv-cache-dtype out",
        )
    others = f", or in {' or '.join(lowering.cache_types)}" if lowering.cache_types else ""
    raise UsageError(
        f"--kv-cache-dtype {kind} cannot be had with {_model(wides)}",
        why=f"caches are in the type that the model computes in{others}",
        fix=_choice("--kv-cache-dtype", kind, kinds),
    )


def _require_drafter(recipe: Recipe, lowering: Lowering, wides: Sequence[str]) -> None:
    kind, kinds = recipe.drafter, list(drafter_formats(tensorrt=lowering.is_tensorrt))
    if lowering.is_tensorrt and kind not in kinds and kind in drafter_formats(tensorrt=False):
        title = NUMBER_FORMATS[kind].title
        raise UsageError(
            f"--draft-precision {kind} is not available with TensorRT",
            why="what a drafter's matrices are multiplied with stays wide, and TensorRT multiplies "
            f"{title} with {title} alone; it would write the weights out wide before every product",
            fix=f"--draft-precision {kinds[0]}, or leave it out",
        )
    if kind in kinds or kind in wides:
        return
    if kind in wide_names():
        raise UsageError(
            f"--draft-precision {kind} does not go with a target in {recipe.wide}",
            why="the drafter reads the target's features as they are, in its type",
            fix=f"--draft-precision {recipe.wide}, or leave it out",
        )
    raise UsageError(
        f"--draft-precision {kind} does not exist",
        why=f"a drafter is in its target's type, or its matrices are stored in {', '.join(kinds)}",
        fix=_choice("--draft-precision", kind, kinds),
    )


def drafter_formats(*, tensorrt: bool) -> tuple[str, ...]:
    """The formats that the matrices of a drafter can be stored in."""
    return tuple(each.name for each in quantized_formats() if each.drafts(tensorrt=tensorrt))


def _on_cpu() -> tuple[str, ...]:
    """The formats that caches are kept in on a CPU, with our kernels."""
    return CPU.cache_types


def _first(kind: str) -> str:
    """The first GPU that computes in a format."""
    on = NUMBER_FORMATS[kind].tensorrt
    return sm_name(on.only[0] if on and on.only else on.since if on else 0)


def _choice(flag: str, name: str, kinds: Sequence[str]) -> str:
    """The name of ``kinds`` that is nearest, else the first."""
    near = [*nearest(name.lower(), kinds, 1), *kinds][:1]
    return f"{flag} {near[0]}, or leave it out" if near else "leave it out"


def _model(wides: Sequence[str]) -> str:
    return f"a model in {wides[0]}" if len(wides) == 1 else "any model"


def _refused(what: str, why: str, nearest: str) -> UsageError:
    return UsageError(what, why=why, fix=f"use --precision {nearest}, or leave it out")
