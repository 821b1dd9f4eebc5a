"""Share of a recipe's weights whose matmuls run in the recipe's type, with both factors in it.

A recipe such as FP8 or INT8 covers a weight and its input. A build that only stores the weight in that type saves
memory but no time, and must not be reported as the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ...graphs.lowering import TENSORRT
from ...plugins.errors import BuildError
from ...plugins.number_formats import NUMBER_FORMATS, quantized_formats
from ...plugins.problems import listed
from .allowed_recipes import available
from .quantization_schemes import rounds_input, scheme
from .recipes import DRAFTER_ROLE, RECIPES, Recipe, emulated, is_emulated_format

if TYPE_CHECKING:
    from ...graphs.lowering import Lowering
    from ...graphs.targets.weight_roles import RoledWeight
    from .weight_selection import Selection

_TITLES = {"experts": "routed experts"}


class Shares(NamedTuple):
    """Shares of the values that a recipe quantizes.

    ``stored``: stored in its type. ``multiplied``: also computed in it, if the type covers the input. ``accepted``: the
    share that must be large enough; it adds emulated matmuls and those that ``--allow-wide`` permits.
    """

    stored: float
    multiplied: float
    accepted: float


def names_inputs(weight: RoledWeight, recipe: Recipe, lowering: Lowering) -> bool:
    """Return True if a weight's type covers both factors of its matmuls under ``lowering``."""
    kind = recipe.precision(weight.role)
    if weight.role == DRAFTER_ROLE or not NUMBER_FORMATS[kind].rounds_inputs:
        return False
    return scheme(kind, lowering).input is not None or lowering.has_kernels


def is_emulated(weight: RoledWeight, recipe: Recipe, lowering: Lowering) -> bool:
    """Return True if the runtime cannot compute in a weight's type, and multiplies rounded values in the wide type."""
    return not lowering.is_tensorrt and is_emulated_format(recipe.precision(weight.role))


def computed_wide(selection: Selection, lowering: Lowering) -> dict[str, RoledWeight]:
    """Return weights, by name, that are computed in the wide type by design although their type covers both factors."""
    recipe = selection.recipe
    return {
        name: weight
        for name, weight in selection.weights.items()
        if lowering.is_tensorrt and names_inputs(weight, recipe, lowering)
        if not rounds_input(recipe, weight.role)
    }


def shares(selection: Selection, lowering: Lowering, wide: Mapping[str, str], products: Mapping[str, Any]) -> Shares:
    """Count a graph in which ``wide`` are not stored in their type, and ``products`` are not computed in it."""
    recipe = selection.recipe
    emulated = {name for name, weight in selection.weights.items() if is_emulated(weight, recipe, lowering)}
    refused = {name for name in products if selection.weights[name].role not in recipe.allow_wide} - emulated
    return Shares(
        stored=selection.share_without(wide.keys()),
        multiplied=selection.share_without(wide.keys() | products.keys() | emulated),
        accepted=selection.share_without(wide.keys() | refused),
    )


def require_multiplied(selection: Selection, lowering: Lowering) -> None:
    """Raise ``BuildError``, with the actual share, if too few weights would be computed in the recipe's type.

    It needs neither graph nor checkpoint, so it can run before hours of work.
    """
    if refusal := _refusal(selection, lowering):
        raise refusal


def expected_refusal(census: Sequence[RoledWeight], recipe: Recipe, lowering: Lowering) -> BuildError | None:
    """Return the error that a build or an export of these weights would end with, if any."""
    from .weight_selection import Selection

    return _refusal(Selection.of_target(census, recipe), lowering) if recipe.quantized_type else None


def _refusal(selection: Selection, lowering: Lowering) -> BuildError | None:
    wide = computed_wide(selection, lowering)
    counted = shares(selection, lowering, {}, wide)
    is_refused = counted.accepted < selection.recipe.share
    return too_little(selection, lowering, counted.multiplied, wide) if is_refused else None


def expected_warning(census: Sequence[RoledWeight], recipe: Recipe, lowering: Lowering) -> str:
    """Return the first note that a build or an export of these weights would report; empty if none."""
    from .weight_selection import Selection

    warning = emulated(recipe, lowering)
    if recipe.quantized_type:
        selection = Selection.of_target(census, recipe)
        wide = computed_wide(selection, lowering)
        counted = shares(selection, lowering, {}, wide)
        if wide and counted.multiplied < recipe.share <= counted.accepted:
            warning.append(shortfall(selection, counted.multiplied, wide))
    return "; ".join(warning)


def too_little(selection: Selection, lowering: Lowering, share: float, wide: Mapping[str, Any]) -> BuildError:
    """The error for a graph that computes only ``share`` in its recipe's type, and the weights ``wide`` in another."""
    recipe = selection.recipe
    roles = dict.fromkeys(selection.weights[name].role for name in wide)
    allow = [role for role in roles if role in _TITLES and role not in recipe.allow_wide]
    nearest = _nearest(selection, lowering)
    instead = f"build in {nearest}, the nearest recipe whose weights are all computed in its type"
    if lowering.has_expert_layer and _is_computed_in(selection, recipe.name, TENSORRT):
        instead += "; or compute all experts in every pass, with --experts dense"
    return BuildError(
        f"only {share:.1%} of the weights that --precision {recipe.name} quantizes would be computed in "
        f"{recipe.title}; at least {recipe.share:.0%} is required",
        why=f"{_weights_by_role(selection, wide)} would be stored in {recipe.title} but computed in {recipe.wide} by "
        f"the lowering {lowering}, among them {listed(list(wide), 2)}",
        fix=f"{instead}; or permit this with --allow-wide {','.join(allow)}; every report then starts with the share"
        if allow
        else instead,
    )


def shortfall(selection: Selection, share: float, wide: Mapping[str, Any]) -> str:
    """The first line of every report on a graph that computes only ``share`` in its recipe's type, with permission."""
    recipe = selection.recipe
    return (
        f"{share:.1%} of the weights that {recipe.name} quantizes are computed in {recipe.title}: "
        f"{_weights_by_role(selection, wide)} are stored in {recipe.title} but computed in {recipe.wide}, as "
        f"--allow-wide {','.join(recipe.allow_wide)} permits"
    )


def _weights_by_role(selection: Selection, wide: Mapping[str, Any]) -> str:
    """Describe weights by role, each with its share."""
    by_role: dict[str, list[str]] = {}
    for name in wide:
        by_role.setdefault(selection.weights[name].role, []).append(name)
    return " and ".join(
        f"{_TITLES.get(role, f'weights of {role}')} ({1 - selection.share_without(names):.1%} of them)"
        for role, names in by_role.items()
    )


def _nearest(selection: Selection, lowering: Lowering) -> str:
    """Return the first quantized recipe that is fully computed in its type for these weights, else the wide one."""
    recipe = selection.recipe
    both = [each.name for each in quantized_formats() if each.rounds_inputs and each.rounds_expert_inputs]
    for kind in both:
        if kind != recipe.name and kind in available(lowering) and _is_computed_in(selection, kind, lowering):
            return kind
    return recipe.wide


def _is_computed_in(selection: Selection, kind: str, lowering: Lowering) -> bool:
    """Return True if these weights would be computed in the type of the recipe ``kind``."""
    other = replace(RECIPES[kind].on(selection.recipe.wide, lowering), exclude=selection.recipe.exclude)
    moved = replace(selection, recipe=other)
    return shares(moved, lowering, {}, computed_wide(moved, lowering)).multiplied >= other.share
