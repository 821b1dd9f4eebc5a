"""Bytes of a target's weights in a precision, by role, computed from shapes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...graphs.targets.weight_roles import ROLES, RoledWeight
from ...plugins.number_formats import NUMBER_FORMATS, keeps_blocks, kernels_of
from ...plugins.number_types import BY_NUMPY, E8M0
from ..precision.recipes import LM_HEAD, Recipe
from ..precision.weight_selection import Selection

if TYPE_CHECKING:
    from ...graphs.drafters import DrafterSpec
    from ...graphs.lowering import Lowering
    from ...plugins.number_formats import Scheme

SCALES = "scales"
_ID_BYTES = 8
_POWERS = "e8m0"  # scales that are powers of two


@dataclass(frozen=True)
class WeightLine:
    """All weights of one role and type."""

    role: str
    count: int
    precision: str
    bytes: int


def weight_lines(
    census: Iterable[RoledWeight], recipe: Recipe, lowering: Lowering, kept_blocks: Mapping[str, str] | None = None
) -> tuple[WeightLine, ...]:
    """Return a line for every role and type of the target's weights, and one for each type of their scales.

    ``kept_blocks`` are the block types of GGUF weights that are used unchanged, by weight; None if they are not known.
    A weight that keeps its blocks, as its format says, has a line for their type, scales included. Raises
    ``UsageError`` for an exclusion that matches nothing.
    """
    from ..precision.quantization_schemes import scheme_of_blocks, serves_embedding

    every = tuple(census)
    selected = Selection.of_target(every, recipe, kept_blocks).weights
    blocks = kept_blocks or {}
    in_own_blocks = {name: weight for name, weight in selected.items() if keeps_blocks(recipe.precision(weight.role))}
    scales: dict[str, Counter[str]] = {}
    for name in selected.keys() - in_own_blocks.keys():
        weight = selected[name]
        how = scheme_of_blocks(recipe.precision(weight.role), blocks[name]) if name in blocks else None
        scales[name] = _of_blocks(weight, how, weight.count) if how else _scales(weight, recipe, lowering)
    counts: Counter[tuple[str, str]] = Counter()
    for weight in every:
        kind = recipe.precision(weight.role) if scales.get(weight.name) else recipe.wide
        if weight.name not in in_own_blocks:
            counts[weight.role, kind] += _stored(weight, recipe, lowering) if kind != recipe.wide else weight.count
    tied = selected.keys() - {weight.name for weight in every}
    for name in tied:  # codes beside the embedding, or in place of it
        if scales.get(name):
            counts[LM_HEAD, recipe.lm_head] += _stored(selected[name], recipe, lowering)
        if (scales.get(name) or name in in_own_blocks) and serves_embedding(recipe, lowering):
            del counts["embedding", recipe.wide]
    lines = [line(role, kind, counts[role, kind]) for role, kind in counts]
    lines += _lines_of_blocks(in_own_blocks.values(), recipe, blocks)
    of_scales = sum(scales.values(), Counter())
    ordered = sorted(lines, key=lambda each: ROLES.index(each.role))
    return (*ordered, *(line(SCALES, kind, count) for kind, count in sorted(of_scales.items())))


def _lines_of_blocks(weights: Iterable[RoledWeight], recipe: Recipe, blocks: Mapping[str, str]) -> list[WeightLine]:
    """Return a line for every role and type of weights that keep their blocks, as packed for the kernels.

    Where the type is not known yet, it is the one in the record of the format.
    """
    from ...plugins.ops.quantized_linear.packed_weights import code_shape, scale_dtype, scale_shape

    counts: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for weight in weights:
        precision = recipe.precision(weight.role)
        kernels = kernels_of(precision)
        packed = blocks.get(weight.name, kernels.packed.packed if kernels else "").lower()
        columns = weight.shape[-1]
        rows = weight.count // columns
        scales = math.prod(scale_shape(packed, rows, columns)) * BY_NUMPY[scale_dtype(packed)].bits // 8
        key = weight.role, packed if weight.name in blocks else precision
        counts[key] += weight.count
        sizes[key] += math.prod(code_shape(packed, rows, columns)) + scales
    return [WeightLine(role, counts[role, kind], kind, sizes[role, kind]) for role, kind in counts]


def too_wide(
    census: tuple[RoledWeight, ...], head: DrafterSpec | None, recipe: Recipe, lowering: Lowering
) -> list[str]:
    """Return notes on a target or a drafter if too few of its weights support the recipe's type."""
    notes = []
    if not recipe.keeps_blocks:  # weights in blocks have them
        notes += share_note("the weights", _share(Selection.of_target(census, recipe), lowering), recipe)
    if head and recipe.drafter != recipe.wide:
        selection = Selection.of_drafter(head, recipe, lowering)
        notes += share_note("the drafter's weights", _share(selection, lowering), selection.recipe)
    return notes


def share_note(subject: str, share: float, recipe: Recipe) -> list[str]:
    """Return a note that a build fails, if the quantized share of the weights is below the recipe's minimum."""
    if share >= recipe.share:
        return []
    return [
        f"only {share:.1%} of {subject} that {recipe.name} quantizes can be {recipe.title}; a build or export below "
        f"{recipe.share:.0%} fails"
    ]


def _share(selection: Selection, lowering: Lowering) -> float:
    """Return the share of the selected weights whose columns fit a block."""
    taken = sum(w.count for w in selection.weights.values() if _scales(w, selection.recipe, lowering))
    return taken / max(selection.count, 1)


def _scales(weight: RoledWeight, recipe: Recipe, lowering: Lowering) -> Counter[str]:
    """Count the scales of a quantized weight and its input, by type; none if its columns fit no block.

    The gate, up and down projections of experts have their own scales.
    """
    from ..precision.quantization_schemes import rounds_input, scheme_of

    how = scheme_of(recipe.precision(weight.role), lowering, weight)
    counts: Counter[str] = Counter()
    if how.block:
        return _of_blocks(weight, how, _stored(weight, recipe, lowering), recipe.wide)
    counts["fp32"] = math.prod(weight.shape[:-1]) if how.group == "row" else weight.matrices
    if how.input and rounds_input(recipe, weight.role):
        counts["fp32"] += 1  # all matrices of a stack have one input
    return counts


def _of_blocks(weight: RoledWeight, how: Scheme, stored: int, wide: str = "fp16") -> Counter[str]:
    """Count the scales, and minimum values if there are any, of ``stored`` numbers in blocks."""
    kind = _POWERS if how.powers else "fp16" if how.packed else wide
    block = how.block_for(weight.shape[-1])
    return Counter({kind: stored // block * how.of_block} if block else {})


def _stored(weight: RoledWeight, recipe: Recipe, lowering: Lowering) -> int:
    """Count the numbers of a quantized weight, with the zero padding of its last blocks."""
    from ..precision.quantization_schemes import scheme_of

    columns = weight.shape[-1]
    block = scheme_of(recipe.precision(weight.role), lowering, weight).block_for(columns)
    return weight.count // columns * (columns + (-columns % block if block else 0))


def bytes_of(precision: str) -> float:
    """Return the bytes of a number in a format, without its scale; also of power-of-two scales (``e8m0``)."""
    return (E8M0 if precision == _POWERS else NUMBER_FORMATS[precision].number_type).bits / 8


def line(role: str, precision: str, count: int) -> WeightLine:
    """Return the line for ``count`` weights stored in ``precision``."""
    return WeightLine(role, count, precision, math.ceil(count * bytes_of(precision)))


def head_weights(
    head: DrafterSpec, recipe: Recipe, lowering: Lowering, shared: Collection[str] = ()
) -> tuple[int, int]:
    """Return the number of weights of the drafter's graph, and their bytes with scales.

    Its ids stay integers; ``shared`` weights are in the target's file.
    """
    counts = {name: math.prod(shape) for name, shape in head.expected_shapes().items() if name not in shared}
    ids = counts.pop("d2t", 0)
    count = sum(counts.values())
    size = count * bytes_of(recipe.wide) + ids * _ID_BYTES
    if recipe.drafter != recipe.wide:
        selection = Selection.of_drafter(head, recipe, lowering)
        for weight in selection.weights.values():
            if scales := _scales(weight, selection.recipe, lowering):
                size += weight.count * (bytes_of(recipe.drafter) - bytes_of(recipe.wide))
                size += sum(number * bytes_of(kind) for kind, number in scales.items())
    return count + ids, math.ceil(size)
