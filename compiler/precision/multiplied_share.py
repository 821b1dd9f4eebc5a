"""The share of a recipe's weights that are multiplied in the type that it names: both factors of a product, or neither.

A recipe such as FP8 or INT8 names the type of a weight and of what it is multiplied with. One whose products have but
the weight in it saves memory and no time, and must not be taken for the other.
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
    """Shares of the numbers that a recipe quantizes.

    ``stored`` are in its type, ``multiplied`` as well where it names the other factor. ``accepted`` is what may not be
    too little: beside those, what is emulated, and what ``--allow-wide`` names.
    """

    stored: float
    multiplied: float
    accepted: float


def names_inputs(weight: RoledWeight, recipe: Recipe, lowering: Lowering) -> bool:
    """Whether a weight's type stands for both factors of its products, as it is spelled for ``lowering``."""
    kind = recipe.precision(weight.role)
    if weight.role == DRAFTER_ROLE or not NUMBER_FORMATS[kind].rounds_inputs:
        return False
    return scheme(kind, lowering).input is not None or lowering.has_kernels


def is_emulated(weight: RoledWeight, recipe: Recipe, lowering: Lowering) -> bool:
    """Whether what runs a weight's products has no arithmetic in its type, and multiplies rounded numbers wide."""
    return not lowering.is_tensorrt and is_emulated_format(recipe.precision(weight.role))


def multiplied_wide(selection: Selection, lowering: Lowering) -> dict[str, RoledWeight]:
    """The weights whose products are wide by design though their type names both factors, by name."""
    recipe = selection.recipe
    return {
        name: weight
        for name, weight in selection.weights.items()
        if lowering.is_tensorrt and names_inputs(weight, recipe, lowering)
        if not rounds_input(recipe, weight.role)
    }


def shares(selection: Selection, lowering: Lowering, wide: Mapping[str, str], products: Mapping[str, Any]) -> Shares:
    """Count a graph whose weights ``wide`` are not stored in their type, and ``products`` are not multiplied in it."""
    recipe = selection.recipe
    emulated = {name for name, weight in selection.weights.items() if is_emulated(weight, recipe, lowering)}
    refused = {name for name in products if selection.weights[name].role not in recipe.allow_wide} - emulated
    return Shares(
        stored=selection.share_without(wide.keys()),
        multiplied=selection.share_without(wide.keys() | products.keys() | emulated),
        accepted=selection.share_without(wide.keys() | refused),
    )


def require_multiplied(selection: Selection, lowering: Lowering) -> None:
    """Raise ``BuildError``, with the true share, where too few weights would be multiplied as the recipe says.

    It looks at no graph and no checkpoint, so that it can come before hours of work.
    """
    if refusal := _refusal(selection, lowering):
        raise refusal


def foreseen_refusal(census: Sequence[RoledWeight], recipe: Recipe, lowering: Lowering) -> BuildError | None:
    """Return the error with which a build or an export of these weights would end, if it would."""
    from .weight_selection import Selection

    return _refusal(Selection.of_target(census, recipe), lowering) if recipe.quantized_type else None


def _refusal(selection: Selection, lowering: Lowering) -> BuildError | None:
    wide = multiplied_wide(selection, lowering)
    counted = shares(selection, lowering, {}, wide)
    is_refused = counted.accepted < selection.recipe.share
    return too_little(selection, lowering, counted.multiplied, wide) if is_refused else None


def foretold(census: Sequence[RoledWeight], recipe: Recipe, lowering: Lowering) -> str:
    """Return what a build or an export of these weights would say first, if it were made; empty for nothing."""
    from .weight_selection import Selection

    said = emulated(recipe, lowering)
    if recipe.quantized_type:
        selection = Selection.of_target(census, recipe)
        wide = multiplied_wide(selection, lowering)
        counted = shares(selection, lowering, {}, wide)
        if wide and counted.multiplied < recipe.share <= counted.accepted:
            said.append(shortfall(selection, counted.multiplied, wide))
    return "; ".join(said)


def too_little(selection: Selection, lowering: Lowering, share: float, wide: Mapping[str, Any]) -> BuildError:
    """The refusal of a graph of which ``share`` is multiplied as its recipe says, and the weights ``wide`` are not."""
    recipe = selection.recipe
    roles = dict.fromkeys(selection.weights[name].role for name in wide)
    allow = [role for role in roles if role in _TITLES and role not in recipe.allow_wide]
    nearest = _nearest(selection, lowering)
    instead = f"build in {nearest}, the nearest recipe that is multiplied as it says"
    if lowering.has_expert_layer and _holds(selection, recipe.name, TENSORRT):
        instead += "; or compute all experts in every pass, with --experts dense"
    return BuildError(
        f"{share:.1%} of the weights that --precision {recipe.name} names would be multiplied in {recipe.title}, "
        f"{recipe.share:.0%} is the least that may be called so",
        why=f"{_who(selection, wide)} would be stored in {recipe.title} and multiplied in {recipe.wide} by the "
        f"lowering {lowering}, among them {listed(list(wide), 2)}",
        fix=f"{instead}; or permit it with --allow-wide {','.join(allow)}, and every report says so first"
        if allow
        else instead,
    )


def shortfall(selection: Selection, share: float, wide: Mapping[str, Any]) -> str:
    """What every report says first of a graph that multiplies ``share`` as its recipe says, with permission."""
    recipe = selection.recipe
    return (
        f"{share:.1%} of the weights that {recipe.name} names are multiplied in {recipe.title}: "
        f"{_who(selection, wide)} are stored in {recipe.title} and multiplied in {recipe.wide}, as --allow-wide "
        f"{','.join(recipe.allow_wide)} permits"
    )


def _who(selection: Selection, wide: Mapping[str, Any]) -> str:
    """Name the weights by what they are for, each with its share."""
    by_role: dict[str, list[str]] = {}
    for name in wide:
        by_role.setdefault(selection.weights[name].role, []).append(name)
    return " and ".join(
        f"{_TITLES.get(role, f'weights of {role}')} ({1 - selection.share_without(names):.1%} of them)"
        for role, names in by_role.items()
    )


def _nearest(selection: Selection, lowering: Lowering) -> str:
    """The first quantized recipe whose products hold what it names for these weights, else the wide one."""
    asked = selection.recipe
    both = [each.name for each in quantized_formats() if each.rounds_inputs and each.rounds_expert_inputs]
    for kind in both:
        if kind != asked.name and kind in available(lowering) and _holds(selection, kind, lowering):
            return kind
    return asked.wide


def _holds(selection: Selection, kind: str, lowering: Lowering) -> bool:
    """Whether these weights would be multiplied as the recipe ``kind`` says."""
    other = replace(RECIPES[kind].on(selection.recipe.wide, lowering), exclude=selection.recipe.exclude)
    moved = replace(selection, recipe=other)
    return shares(moved, lowering, {}, multiplied_wide(moved, lowering)).multiplied >= other.share
