"""Choose the recipe of a request: for a build, an export, their dry run, and an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...graphs.lowering import Lowering
from ...plugins.number_formats import FP32, format_stored_as, kernels_of
from ...plugins.number_types import E4M3
from ..hardware.gpus import supports
from .allowed_recipes import available, require_known, require_legal, wide_names
from .precision_options import PrecisionOptions
from .recipes import RECIPES, Recipe, wide_type

if TYPE_CHECKING:
    from ...graphs.drafters import DrafterSpec
    from ..checkpoints.checkpoint import Checkpoint
    from ..checkpoints.target import Target

_ON_CPU = FP32.name  # the compute type of ONNX Runtime


def decide(
    asked: PrecisionOptions,
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
    if asked.name is None and keeps_own and wide is None:  # only an FP8 checkpoint could have exclusions
        asked = replace(asked, exclude=())
    name = precision_of(asked, lowering, target, gpus, keeps_own=keeps_own)
    recipe = with_drafter(table_of(replace(asked, name=name), lowering, wide), asked, lowering, head)
    require_legal(recipe, lowering, gpus, wides=wide_names() if wide is None else ())
    return recipe


def with_drafter(recipe: Recipe, asked: PrecisionOptions, lowering: Lowering, head: DrafterSpec | None) -> Recipe:
    """Return the recipe with default types for the drafter, unless the user chose them.

    Where ONNX Runtime's kernels compute the target in integers, the drafter's matrices are integers too; a head whose
    widths no block size divides stays unquantized.
    """
    kernels = kernels_of(recipe.weights)
    if head is None or asked.drafter is not None or not lowering.has_kernels or kernels is None:
        return recipe
    from .on_the_fly_quantizer import unblocked
    from .weight_selection import Selection

    narrow = replace(recipe, drafter=kernels.drafter)
    selection = Selection.of_drafter(head, narrow, lowering)
    fits = selection.share_without(unblocked(selection, lowering)) >= selection.recipe.share
    return narrow if fits else recipe


def precision_of(
    asked: PrecisionOptions,
    lowering: Lowering,
    target: Target | None = None,
    gpus: Sequence[str] = (),
    *,
    keeps_own: bool = False,
) -> str:
    """Return the name of the requested recipe, or the default; see ``decide``.

    A checkpoint's own precision is that of its E4M3 codes if it has scales for their inputs and all GPUs can compute
    with them; otherwise its wide type.
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


def table_of(asked: PrecisionOptions, lowering: Lowering, wide: str | None) -> Recipe:
    """Return the table of the requested recipe over a wide type; BF16 if that is not known yet.

    The table may be illegal. Raises ``UsageError`` for a recipe that does not exist.
    """
    require_known(asked.name)
    return asked.of(RECIPES[asked.name or _ON_CPU].on(wide or available(lowering)[0], lowering))


def wide_of(target: Checkpoint | None, lowering: Lowering) -> str | None:
    """Return the type of a target's unquantized weights; None for TensorRT before the checkpoint is read."""
    if not lowering.is_tensorrt:
        return _ON_CPU
    return wide_type(target) if target else None
