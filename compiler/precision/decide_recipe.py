"""The one place where the recipe of a request is decided: for a build, an export, their dry run, and an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...graphs.lowering import Lowering
from ...plugins.number_formats import FP32, format_stored_as, kernels_of
from ...plugins.number_types import E4M3
from ..hardware.gpus import supports
from .allowed_recipes import available, require_known, require_legal, wide_names
from .precision_options import PrecisionAsked
from .recipes import RECIPES, Recipe, wide_type

if TYPE_CHECKING:
    from ...graphs.drafters import DrafterSpec
    from ..checkpoints.checkpoint import Checkpoint
    from ..checkpoints.target import Target

_ON_CPU = FP32.name  # what ONNX Runtime computes in


def decide(
    asked: PrecisionAsked,
    lowering: Lowering,
    target: Target | None = None,
    gpus: Sequence[str] = (),
    *,
    keeps_own: bool = False,
    head: DrafterSpec | None = None,
) -> Recipe:
    """The recipe that a request comes to for a target, the ``head`` that drafts for it, and GPUs (``sm_120``).

    Without a ``target`` it is as much as can be told before the checkpoint is read. ``keeps_own`` is for builds, which
    for TensorRT have the checkpoint's own precision unless told; exports have the first of their lowering. Raises
    ``UsageError``, with the nearest legal choice, for what cannot be had.
    """
    wide = wide_of(target.checkpoint if target else None, lowering)
    if asked.name is None and keeps_own and wide is None:  # an FP8 checkpoint would have something to exclude from
        asked = replace(asked, exclude=())
    name = precision_of(asked, lowering, target, gpus, keeps_own=keeps_own)
    recipe = with_drafter(table_of(replace(asked, name=name), lowering, wide), asked, lowering, head)
    require_legal(recipe, lowering, gpus, wides=wide_names() if wide is None else ())
    return recipe


def with_drafter(recipe: Recipe, asked: PrecisionAsked, lowering: Lowering, head: DrafterSpec | None) -> Recipe:
    """The recipe with the types of a drafter, unless they were asked for.

    Where ONNX Runtime's kernels multiply the target's integers, the matrices of the drafter are integers too; a head of
    widths that no block divides stays wide.
    """
    kernels = kernels_of(recipe.weights)
    if head is None or asked.drafter is not None or not lowering.has_kernels or kernels is None:
        return recipe
    from .weight_selection import Selection
    from .weights_rounded_here import unblocked

    narrow = replace(recipe, drafter=kernels.drafter)
    selection = Selection.of_drafter(head, narrow, lowering)
    fits = selection.share_without(unblocked(selection, lowering)) >= selection.recipe.share
    return narrow if fits else recipe


def precision_of(
    asked: PrecisionAsked,
    lowering: Lowering,
    target: Target | None = None,
    gpus: Sequence[str] = (),
    *,
    keeps_own: bool = False,
) -> str:
    """The name of the recipe asked for, else what suits; see ``decide``.

    A checkpoint's own precision is that of its E4M3 codes where it holds them with scales for their inputs and all GPUs
    have arithmetic for it, else its wide type.
    """
    if asked.name is not None:
        return asked.name
    if target is None or not keeps_own or not lowering.is_tensorrt:
        return available(lowering)[0]
    from .weight_source import is_whole_fp8

    own = format_stored_as(E4M3.safetensors)
    if own and all(supports(gpu, own.name) for gpu in gpus) and is_whole_fp8(target, lowering):
        return own.name
    return wide_type(target.checkpoint)


def table_of(asked: PrecisionAsked, lowering: Lowering, wide: str | None) -> Recipe:
    """The table that the asked recipe, which is named, stands for over a wide type; BF16 where none is known yet.

    It need not be legal. Raises ``UsageError`` for a recipe that does not exist.
    """
    require_known(asked.name)
    return asked.of(RECIPES[asked.name or _ON_CPU].on(wide or available(lowering)[0], lowering))


def wide_of(target: Checkpoint | None, lowering: Lowering) -> str | None:
    """What a target is kept in where it is not quantized; None for TensorRT before the checkpoint is read."""
    if not lowering.is_tensorrt:
        return _ON_CPU
    return wide_type(target) if target else None
