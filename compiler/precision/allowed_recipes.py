"""Legality of recipes per backend and GPU, with the nearest legal choice for the others."""

from __future__ import annotations

from collections.abc import Sequence

from ...graphs.lowering import CPU, LOWERINGS, Lowering
from ...plugins.errors import UsageError, nearest
from ...plugins.number_formats import NUMBER_FORMATS, keeps_blocks, quantized_formats, wide_formats
from ...plugins.tensorrt.products import TENSORRT_RTX
from ..hardware.gpus import sm_name, supports
from .recipes import RECIPES, Recipe, is_calibrated_cache


def lowering_for(name: str) -> Lowering:
    """Return the lowering that ``--for`` names. Raises ``UsageError`` listing the available ones."""
    if name not in LOWERINGS:
        raise UsageError(
            f"unknown --for {name}", why=f"the valid values are {', '.join(LOWERINGS)}", fix="use --for ort"
        )
    return LOWERINGS[name]


def available(lowering: Lowering) -> tuple[str, ...]:
    """Return the recipes of a lowering, the default first."""
    return *lowering.wide_types, *_quantized(lowering)


def require_known(precision: str | None) -> None:
    """Raise ``UsageError`` for a recipe that does not exist; None means the default."""
    if precision is not None and precision not in RECIPES:
        raise UsageError(
            f"unknown precision {precision!r}",
            why=f"the valid values are {', '.join(RECIPES)}",
            fix=_choice("use --precision", precision, tuple(RECIPES)),
        )


def require_legal(
    recipe: Recipe, lowering: Lowering, gpus: Sequence[str] = (), *, wide_types: Sequence[str] = ()
) -> None:
    """Raise ``UsageError``, with the nearest legal choice, for a table that ``lowering`` or a GPU (``sm_120``) lacks.

    ``wide_types`` are the possible wide types before a checkpoint is read; empty if the recipe's is final.
    """
    wide_types = wide_types or (recipe.wide,)
    known = available(lowering)
    if recipe.name not in known:
        raise _refused(
            f"the precision {recipe.name!r} is not available with {lowering.backend}",
            unsupported_reason(recipe.name, tensorrt=lowering.is_tensorrt),
            "fp16 or bf16" if lowering.is_tensorrt else known[0],
            instead="" if lowering.is_tensorrt or not keeps_blocks(recipe.name) else f"use the lowering {CPU}, or ",
        )
    if recipe.exclude and not recipe.quantized_type:
        raise UsageError(
            f"--exclude {recipe.exclude[0]!r} has no effect",
            why=f"{recipe.name} quantizes no weights of the target",
            fix="omit --exclude, or add --precision int8 or another quantized recipe",
        )
    _require_drafter(recipe, lowering, wide_types)
    require_gpus(recipe, gpus)
    _require_lm_head(recipe, lowering, gpus, wide_types)
    _require_caches(recipe, lowering, gpus, wide_types)


def unsupported_reason(precision: str, *, tensorrt: bool) -> str:
    """Explain why TensorRT, or ONNX Runtime, does not support a recipe."""
    kind = NUMBER_FORMATS[precision]
    if kind.as_stored:
        only = "only this project's CPU kernels compute with the blocks of a GGUF file"
        on_gpus = "for TensorRT, all blocks are dequantized except routed experts in MXFP4"
        return f"{only}; {on_gpus}" if tensorrt else f"{only}, which need a C++ compiler"
    if kind.is_quantized:
        return f"{'TensorRT' if tensorrt else 'ONNX Runtime'} neither computes in {kind.title} nor emulates it"
    return f"TensorRT has no attention kernel for {precision}" if tensorrt else "ONNX Runtime computes in fp32 on a CPU"


def wide_names() -> tuple[str, ...]:
    """Return the names of the formats that a whole model can have."""
    return tuple(each.name for each in wide_formats())


def _quantized(lowering: Lowering) -> tuple[str, ...]:
    """Return the quantized formats of a lowering; only this project's kernels read the blocks of GGUF files."""
    every = quantized_formats(tensorrt=lowering.is_tensorrt)
    return tuple(each.name for each in every if lowering.packs or not each.as_stored)


def require_gpus(recipe: Recipe, gpus: Sequence[str]) -> None:
    """Raise ``UsageError``, with an alternative, for a type that a GPU (``sm_120``) cannot compute with."""
    requested = [
        ("--precision", recipe.weights),
        ("--precision", recipe.experts),
        ("--lm-head-precision", recipe.lm_head),
        ("--draft-precision", recipe.drafter),
        ("--kv-cache-dtype", recipe.kv_cache),
    ]
    for flag, kind in requested:
        unsupported = [gpu for gpu in gpus if not supports(gpu, kind)]
        if unsupported:
            raise UsageError(
                f"{flag} {kind} is not available on {', '.join(unsupported)}",
                why=_unsupported_reason(kind),
                fix=f"{_instead(flag, kind, gpus)}, or build {_elsewhere(kind)}",
            )


def _instead(flag: str, kind: str, gpus: Sequence[str]) -> str:
    """Return the nearest option that all of these GPUs support. The checkpoint decides between BF16 and FP16."""
    between = [each for each in NUMBER_FORMATS[kind].instead if all(supports(gpu, each) for gpu in gpus)][:1]
    if flag == "--precision":
        return f"use {flag} {', '.join([*between, 'bf16 or fp16'])}"
    return f"use {flag} {between[0]}, or omit the option" if between and flag != "--kv-cache-dtype" else f"omit {flag}"


def _elsewhere(kind: str) -> str:
    on = NUMBER_FORMATS[kind].tensorrt
    if on is None:
        return "with --backend onnxruntime"
    if not any(map(on.runs_on, TENSORRT_RTX.sms)):
        return f"with --backend tensorrt on a host that has {sm_name(on.only[0])}"
    return "for another GPU, for example --gpu sm_120"


def _unsupported_reason(kind: str) -> str:
    title, on = NUMBER_FORMATS[kind].title, NUMBER_FORMATS[kind].tensorrt
    if on is None:
        return f"TensorRT does not compute in {title}"
    if on.only:
        only = ", ".join(map(sm_name, on.only))
        return (
            f"TensorRT computes in {title} only on {only}; on other GPUs, TensorRT would dequantize the weights "
            "to memory"
        )
    return f"{title} requires {sm_name(on.since)} or newer"


def _require_lm_head(recipe: Recipe, lowering: Lowering, gpus: Sequence[str], wide_types: Sequence[str]) -> None:
    known = _quantized(lowering)
    kind, kinds = recipe.lm_head, [each for each in known if all(supports(gpu, each) for gpu in gpus)]
    if kind in known or kind in wide_types:
        return
    raise UsageError(
        f"--lm-head-precision {kind} is not available with {_model(wide_types)}",
        why=f"the valid types are {', '.join(known)}, and the compute type of the model",
        fix=_choice("--lm-head-precision", kind, kinds),
    )


def _require_caches(recipe: Recipe, lowering: Lowering, gpus: Sequence[str], wide_types: Sequence[str]) -> None:
    kind = recipe.kv_cache
    kinds = [each for each in lowering.cache_types if each in _on_cpu() or all(supports(gpu, each) for gpu in gpus)]
    if kind in wide_types or kind in kinds:
        return
    if is_calibrated_cache(kind):
        on_cpu = (
            f"use --kv-cache-dtype {kinds[0]}" if kinds else f"omit --kv-cache-dtype to keep caches in {recipe.wide}"
        )
        raise UsageError(
            f"--kv-cache-dtype {kind} is not available with {lowering.backend}",
            why=f"the attention kernel of this lowering reads keys and values in {' or '.join([recipe.wide, *kinds])}",
            fix=f"{on_cpu}, or build for a GPU of {_first(kind)} or newer",
        )
    if kind in _on_cpu() and not lowering.is_tensorrt:
        raise UsageError(
            f"--kv-cache-dtype {kind} is not available with the lowering {lowering}",
            why=f"ONNX Runtime's attention kernels read keys and values in their compute type, {recipe.wide}; only "
            "this project's kernels, which need a C++ compiler, support other types",
            fix=f"use the lowering {CPU}, or omit --kv-cache-dtype",
        )
    others = f", or in {' or '.join(lowering.cache_types)}" if lowering.cache_types else ""
    raise UsageError(
        f"--kv-cache-dtype {kind} is not available with {_model(wide_types)}",
        why=f"caches can be in the compute type of the model{others}",
        fix=_choice("--kv-cache-dtype", kind, kinds),
    )


def _require_drafter(recipe: Recipe, lowering: Lowering, wide_types: Sequence[str]) -> None:
    kind, kinds = recipe.drafter, list(drafter_formats(tensorrt=lowering.is_tensorrt))
    if lowering.is_tensorrt and kind not in kinds and kind in drafter_formats(tensorrt=False):
        title = NUMBER_FORMATS[kind].title
        raise UsageError(
            f"--draft-precision {kind} is not available with TensorRT",
            why=(
                f"TensorRT multiplies {title} weights only by {title} inputs, but the inputs of a drafter's "
                "matrices are not quantized, so TensorRT would dequantize the weights to memory before every "
                "matmul"
            ),
            fix=f"use --draft-precision {kinds[0]}, or omit the option",
        )
    if kind in kinds or kind in wide_types:
        return
    if kind in wide_names():
        raise UsageError(
            f"--draft-precision {kind} cannot be combined with a target in {recipe.wide}",
            why="the drafter reads the target's hidden states in the target's type",
            fix=f"use --draft-precision {recipe.wide}, or omit the option",
        )
    raise UsageError(
        f"unknown --draft-precision {kind}",
        why=f"the valid types are {', '.join(kinds)}, and the compute type of the target",
        fix=_choice("--draft-precision", kind, kinds),
    )


def drafter_formats(*, tensorrt: bool) -> tuple[str, ...]:
    """Return the formats available for a drafter's matrices."""
    return tuple(each.name for each in quantized_formats() if each.drafts(tensorrt=tensorrt))


def _on_cpu() -> tuple[str, ...]:
    """Return the cache formats available on a CPU, with this project's kernels."""
    return CPU.cache_types


def _first(kind: str) -> str:
    """Return the first GPU that computes in a format."""
    on = NUMBER_FORMATS[kind].tensorrt
    return sm_name(on.only[0] if on and on.only else on.since if on else 0)


def _choice(flag: str, name: str, kinds: Sequence[str]) -> str:
    """Suggest the most similar of ``kinds``, if any, or omitting the flag."""
    near = [*nearest(name.lower(), kinds, 1), *kinds][:1]
    return f"{flag} {near[0]}, or omit the option" if near else "omit the option"


def _model(wide_types: Sequence[str]) -> str:
    return f"a model in {wide_types[0]}" if len(wide_types) == 1 else "any model"


def _refused(what: str, why: str, nearest: str, instead: str = "") -> UsageError:
    return UsageError(what, why=why, fix=f"{instead}use --precision {nearest}, or omit the option")
