"""Choose the recipe of a request: for a build, an export, their dry run, and an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...graphs.lowering import Lowering
from ...plugins.errors import UsageError
from ...plugins.number_formats import FP32, format_stored_as, kernels_of, quantized_formats
from ...plugins.number_types import E4M3
from ..hardware.gpus import supports
from .allowed_recipes import available, require_known, require_legal, wide_names
from .precision_options import PrecisionOptions
from .quantization_schemes import EXPERTS, scheme_of_blocks
from .recipes import RECIPES, Recipe, wide_type

if TYPE_CHECKING:
    from ...graphs.drafters import DrafterSpec
    from ..checkpoints.checkpoint import Checkpoint
    from ..checkpoints.target import Target

_ON_CPU = FP32.name  # the compute type of ONNX Runtime


def decide(
    options: PrecisionOptions,
    lowering: Lowering,
    target: Target | None = None,
    gpus: Sequence[str] = (),
    *,
    keeps_own: bool = False,
    head: DrafterSpec | None = None,
) -> Recipe:
    """Return the recipe for a request, a target, the ``head`` that drafts for it, and GPUs (``sm_120``).

    Without a ``target``, the result covers what is known before the checkpoint is read. ``keeps_own`` is for builds,
    whose default for TensorRT is the checkpoint's own precision; exports default to the first recipe of their lowering.
    Raises ``UsageError``, with the nearest legal choice, for an unsupported combination.
    """
    wide = wide_of(target.checkpoint if target else None, lowering)
    if options.name is None and target is None and (lowering.packs or (keeps_own and wide is None)):
        options = replace(options, exclude=(), allow_wide=())  # they fit an FP8 checkpoint or a GGUF file
    name = precision_of(options, lowering, target, gpus, keeps_own=keeps_own)
    recipe = with_drafter(table_of(replace(options, name=name), lowering, wide), options, lowering, head)
    if options.allow_wide and not recipe.allow_wide:
        raise UsageError(
            f"--allow-wide {','.join(options.allow_wide)} has no effect",
            why=f"{recipe.name} quantizes no weights of the target",
            fix="omit --allow-wide, or add --precision fp8 or another quantized recipe",
        )
    if target:
        recipe = recipe.keeping_experts(stored_experts(target), lowering)
    require_legal(recipe, lowering, gpus, wide_types=wide_names() if wide is None else ())
    if target and recipe.keeps_blocks:
        _require_blocks(recipe, lowering, target)
    return recipe


def stored_experts(target: Target) -> str:
    """Return the type of blocks (``MXFP4``) that all routed experts of a checkpoint are stored in; empty otherwise."""
    stacks = [weight for weight in target.skeleton.weights if weight.role == EXPERTS]
    stored = [target.blocks(weight.name, weight.shape) for weight in stacks]
    kinds = {blocks.kind if blocks else "" for blocks in stored}
    return kinds.pop() if len(kinds) == 1 else ""


def with_drafter(recipe: Recipe, options: PrecisionOptions, lowering: Lowering, head: DrafterSpec | None) -> Recipe:
    """Return the recipe with default types for the drafter, unless the user chose them.

    Where ONNX Runtime's kernels compute the target in integers, the drafter's matrices are integers too; a head whose
    widths no block size divides stays unquantized.
    """
    kernels = kernels_of(recipe.weights)
    if head is None or options.drafter is not None or not lowering.has_kernels or kernels is None:
        return recipe
    from .on_the_fly_quantizer import indivisible_weights
    from .weight_selection import Selection

    narrow = replace(recipe, drafter=kernels.drafter)
    selection = Selection.of_drafter(head, narrow, lowering)
    fits = selection.share_without(indivisible_weights(selection, lowering)) >= selection.recipe.share
    return narrow if fits else recipe


def precision_of(
    options: PrecisionOptions,
    lowering: Lowering,
    target: Target | None = None,
    gpus: Sequence[str] = (),
    *,
    keeps_own: bool = False,
) -> str:
    """Return the name of the requested recipe, or the default; see ``decide``.

    A checkpoint's own precision for TensorRT is that of its E4M3 codes if it has scales for their inputs and all GPUs
    can compute with them; otherwise its wide type. A GGUF file with blocks that the lowering's kernels read is built as
    stored.
    """
    if options.name is not None:
        return options.name
    if target is None or not (keeps_own if lowering.is_tensorrt else lowering.packs):
        return available(lowering)[0]
    from .weight_source import is_whole_fp8, kept_blocks

    if not lowering.is_tensorrt:
        own_of_file = [
            name for name in _as_stored() if kept_blocks(target, RECIPES[name].on(_ON_CPU, lowering), lowering)
        ]
        return next(iter(own_of_file), available(lowering)[0])

    own = format_stored_as(E4M3.safetensors)
    if own and all(supports(gpu, own.name) for gpu in gpus) and is_whole_fp8(target, lowering):
        return own.name
    return wide_type(target.checkpoint)


def precision_of_blocks(kind: str, lowering: Lowering) -> str | None:
    """Return the default for a GGUF file of which only the type of its blocks is known; None if it has no own."""
    taken = (name for name in _as_stored() if lowering.packs and scheme_of_blocks(name, kind))
    return next(taken, None)


def _as_stored() -> list[str]:
    """Return the formats that keep the blocks of a GGUF file."""
    return [each.name for each in quantized_formats(tensorrt=False) if each.as_stored]


def _require_blocks(recipe: Recipe, lowering: Lowering, target: Target) -> None:
    """Raise ``UsageError`` for a recipe that takes blocks as stored from a checkpoint that has none."""
    from .weight_source import kept_blocks

    if kept_blocks(target, recipe, lowering):
        return
    precision = next(name for name in sorted(recipe.quantized_types) if kernels_of(name))
    flag = "--precision" if recipe.weights == precision else "--lm-head-precision"
    raise UsageError(
        f"{flag} {precision} needs a GGUF file with quantized weights",
        why=f"{target.checkpoint.source} is stored as {target.checkpoint.stored or target.checkpoint.format}",
        fix="use --precision int8 or int4 to quantize it, or omit --precision",
    )


def table_of(options: PrecisionOptions, lowering: Lowering, wide: str | None) -> Recipe:
    """Return the table of the requested recipe over a wide type; BF16 if that is not known yet.

    The table may be illegal. Raises ``UsageError`` for a recipe that does not exist.
    """
    require_known(options.name)
    return options.of(RECIPES[options.name or _ON_CPU].on(wide or available(lowering)[0], lowering))


def wide_of(target: Checkpoint | None, lowering: Lowering) -> str | None:
    """Return the type of a target's unquantized weights; None for TensorRT before the checkpoint is read."""
    if not lowering.is_tensorrt:
        return _ON_CPU
    return wide_type(target) if target else None
