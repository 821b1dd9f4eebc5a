"""Who has the narrow weights of a graph: the checkpoint, which stores them so, or a rounding of wide ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ...graphs.targets import family_for
from ...graphs.targets.sources import Array, Shape, Sources
from ...plugins.errors import BuildError
from ...plugins.problems import counted
from ..checkpoints.checkpoint import Checkpoint
from .caches import stored_cache_scales
from .provider import Provider, others, wanted
from .recipes import DRAFTER_ROLE, RECIPES, Recipe
from .rounded import RoundedHere
from .stored import StoredFp8

if TYPE_CHECKING:
    from ...graphs.drafters import DrafterSpec
    from ...graphs.lowering import Lowering
    from .calibration import Scales

_LAYERS, _FEATURES = "layers.", "fc."  # of a drafter, without its embedding and its head


@dataclass(frozen=True)
class Matrix:
    """Of a drafter, as ``graphs.targets.census`` describes a target's weights."""

    name: str
    shape: Shape
    role: str = DRAFTER_ROLE
    matrices: int = 1

    @property
    def count(self) -> int:
        """Its numbers."""
        return math.prod(self.shape)


def of_target(
    checkpoint: Checkpoint, recipe: Recipe, lowering: Lowering, ranges: Scales | None = None
) -> Provider | None:
    """Of a target in ``recipe``; None where it narrows nothing. ``ranges`` are the calibrated ones of inputs.

    Raises ``BuildError`` for a checkpoint in another narrow type: nothing is quantised twice.
    """
    if not recipe.narrow:
        return None
    sources = Sources(family_for(checkpoint.config), checkpoint.config, checkpoint.shapes)
    weights = wanted(checkpoint.config, recipe)
    stored = [key for name, weight in weights.items() for key in _in_fp8(checkpoint, sources, name, weight.shape)]
    if stored and recipe.narrow_types == {"fp8"}:
        return StoredFp8(checkpoint, sources, recipe, ranges, lowering)
    if stored:
        raise _twice(checkpoint, recipe, stored)

    def read(name: str, shape: Shape) -> Iterator[Array]:
        return sources.read(name, shape, checkpoint.pieces)

    return RoundedHere(recipe, lowering, weights, read, ranges, partial(others, checkpoint.config, recipe))


def of_drafter(
    head: DrafterSpec, recipe: Recipe, lowering: Lowering, read: Callable[[str, Shape], Iterator[Array]]
) -> Provider | None:
    """Of a drafter on a target in ``recipe``; None where it is wide. What its matrices are multiplied with is wide."""
    return (
        None
        if recipe.drafter == recipe.wide
        else RoundedHere(recipe.of_drafter(), lowering, matrices(head, lowering), read)
    )


def matrices(head: DrafterSpec, lowering: Lowering) -> dict[str, Matrix]:
    """Of a drafter's layers, and what brings the target's features to their width. Its head is none of them.

    Not the latter for TensorRT, since it is multiplied with a constant as well: TensorRT-RTX 1.7 writes it out wide
    before every product, and crashes over small ones of 4 bits.
    """
    prefixes = (_LAYERS,) if lowering.is_tensorrt else (_LAYERS, _FEATURES)
    shapes = {name: shape for name, shape in head.expected_shapes().items() if name.startswith(prefixes)}
    return {name: Matrix(name, shape) for name, shape in shapes.items() if len(shape) == 2}


def uncalibrated(checkpoint: Checkpoint, recipe: Recipe, lowering: Lowering) -> list[str]:
    """What a target in ``recipe`` rounds with scales that are not known yet: inputs by their weight, caches."""
    narrow = of_target(checkpoint, recipe, lowering)
    layers = len(family_for(checkpoint.config).describe(checkpoint.config, (0,)).caches)
    caches = recipe.kv_cache == "fp8" and not stored_cache_scales(checkpoint, layers)
    return (narrow.uncalibrated() if narrow else []) + ["the KV cache"] * caches


def is_whole_fp8(checkpoint: Checkpoint, lowering: Lowering) -> bool:
    """Whether a target's checkpoint holds what the recipe fp8 stands for, scales of inputs included."""
    if not any(checkpoint.fp8(name) for name in checkpoint.tensors):
        return False
    recipe = RECIPES["fp8"]
    narrow = of_target(checkpoint, recipe, lowering)
    if not isinstance(narrow, StoredFp8) or narrow.uncalibrated():
        return False
    _, wide = narrow.weights()
    count = sum(weight.count for weight in narrow.wanted.values())
    return sum(narrow.wanted[name].count for name in wide) <= (1 - recipe.share) * count


def _in_fp8(checkpoint: Checkpoint, sources: Sources, name: str, shape: Shape) -> list[str]:
    """Of the tensors that a weight of the graph is put together from, those that the checkpoint has in FP8."""
    keys = (sources.key(key) for piece in sources.pieces(name, shape) for key in piece.keys)
    return [key for key in keys if checkpoint.fp8(key) is not None]


def _twice(checkpoint: Checkpoint, recipe: Recipe, stored: Sequence[str]) -> BuildError:
    others = sorted(recipe.narrow_types - {"fp8"})
    return BuildError(
        f"{checkpoint.folder} is quantised already: it stores {counted(stored)} in FP8, among them {stored[0]}",
        why=f"{' and '.join(others)} cannot be made of it: rounding rounded weights adds a second error to the first, "
        "and one graph takes its narrow weights from one place",
        fix="build it with --precision fp8 and nothing beside it, or start from the BF16 or FP16 checkpoint",
    )
