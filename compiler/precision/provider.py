"""What a graph with narrow weights asks of whoever has their codes and scales."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from ...graphs.targets.sources import Array, Shape
from ...plugins.errors import UsageError
from .exclude import excluded
from .recipes import HEAD, Recipe

if TYPE_CHECKING:
    from ...graphs.rounding import NarrowWeight
    from ...graphs.targets.census import RoledWeight


class Weight(Protocol):
    """A weight of the graph, as ``graphs.targets.census`` describes those of a target."""

    @property
    def name(self) -> str:
        """In the graph."""

    @property
    def shape(self) -> Shape:
        """In the graph."""

    @property
    def role(self) -> str:
        """What the recipe decides its type by."""

    @property
    def count(self) -> int:
        """Its numbers."""


@dataclass(frozen=True)
class Other:
    """A weight that stays wide: what it is for, and why where the recipe would narrow it."""

    role: str
    why: str = ""


class Provider(Protocol):
    """The narrow weights of one graph under one recipe."""

    @property
    def recipe(self) -> Recipe:
        """What was asked for."""

    @property
    def wanted(self) -> Mapping[str, Weight]:
        """The weights that the recipe narrows, by name."""

    @property
    def others(self) -> Mapping[str, Other]:
        """The weights of the same graph that the recipe leaves wide, by name, as far as their roles are known."""

    @property
    def key(self) -> Any:
        """What the graph depends on beside the checkpoint, as JSON."""

    def uncalibrated(self) -> list[str]:
        """The weights whose inputs are to be rounded with a scale that nobody measured yet."""

    def check(self) -> None:
        """Raise ``BuildError`` for what no such graph can be made from, before the minutes that tracing takes."""

    def weights(self) -> tuple[dict[str, NarrowWeight], dict[str, str]]:
        """How each is stored, and why some that should be narrow stay wide."""

    def codes(self, name: str, shape: Shape) -> Iterator[Array]:
        """Of one weight, as consecutive runs of rows in the type that ``weights`` said."""

    def scales(self, name: str, shape: Shape) -> Iterator[Array]:
        """Of the same, float32, as consecutive runs."""

    @property
    def losses(self) -> Mapping[str, float]:
        """What rounding to narrow codes changed, by tensor and relative; complete when all codes were read."""

    def notes(self) -> list[str]:
        """What a user should be told beside that."""


def keyed(recipe: Recipe) -> dict[str, str]:
    """The table as far as one graph depends on it: a target is the same with every type of its drafter."""
    return replace(recipe, drafter=recipe.wide).record()


def others(config: Mapping[str, Any], recipe: Recipe) -> dict[str, Other]:
    """The weights of a target that the recipe leaves wide, by name. A tied head is there by the embedding's."""
    from ...graphs.targets.census import census

    every = census(config)
    could = _could_be(every, recipe)
    narrow = without(could, recipe.exclude)
    tied = {} if any(weight.role == HEAD for weight in every) else {_embedding(every).name: f"{HEAD}.weight"}
    why = {name: f"excluded by {each!r}" for each in recipe.exclude for name in {*could} - {*without(could, (each,))}}
    found = {}
    for weight in every:
        name = tied.get(weight.name, weight.name)
        if name not in narrow:
            found[weight.name] = Other(HEAD if weight.name in tied else weight.role, why.get(name, ""))
    return found


def wanted(config: Mapping[str, Any], recipe: Recipe) -> dict[str, RoledWeight]:
    """The weights of a target that the recipe narrows, by name; see ``narrowed``."""
    from ...graphs.targets.census import census

    narrow = narrowed(census(config), recipe)
    if not narrow:
        raise UsageError("--exclude leaves nothing to quantise", fix=f"exclude less, or build in {recipe.wide}")
    return narrow


def narrowed(census: tuple[RoledWeight, ...], recipe: Recipe) -> dict[str, RoledWeight]:
    """Of all weights of a target, those that the recipe narrows. A tied head is the embedding by the head's name.

    Raises ``UsageError`` for an exclusion that names none of them.
    """
    return without(_could_be(census, recipe), recipe.exclude)


def _could_be(every: tuple[RoledWeight, ...], recipe: Recipe) -> dict[str, RoledWeight]:
    """What is narrowed where nothing is excluded."""
    roles = recipe.narrow_roles
    if HEAD in roles and not any(weight.role == HEAD for weight in every):
        every = (*every, replace(_embedding(every), name=f"{HEAD}.weight", role=HEAD))
    return {weight.name: weight for weight in every if weight.role in roles}


def _embedding(every: tuple[RoledWeight, ...]) -> RoledWeight:
    return next(weight for weight in every if weight.role == "embedding")


def without(weights: Mapping[str, Any], patterns: tuple[str, ...]) -> dict[str, Any]:
    """Those that no pattern names; patterns are of modules."""
    modules = {name.removesuffix(".weight"): name for name in weights}
    out = {modules[module] for module in excluded({module: module for module in modules}, patterns)}
    return {name: weight for name, weight in weights.items() if name not in out}
