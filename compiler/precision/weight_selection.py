"""Select the weights of a graph that a recipe quantizes; the others keep the wide type."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ...graphs.names import module_of
from ...graphs.targets.weight_roles import RoledWeight
from ...plugins.number_formats import keeps_blocks
from .exclude_patterns import excluded
from .recipes import DRAFTER_ROLE, EMBEDDING, LM_HEAD, Recipe

if TYPE_CHECKING:
    from ...graphs.drafters import DrafterSpec
    from ...graphs.lowering import Lowering

_NO_BLOCKS = "not stored in blocks that the kernels support"
_LAYERS, _FEATURES = "layers.", "fc."  # of a drafter


@dataclass(frozen=True)
class WideWeight:
    """A weight that is not quantized: its role, and the reason if the recipe would quantize it."""

    role: str
    why: str = ""


@dataclass(frozen=True)
class Selection:
    """The ``weights`` of one graph that ``recipe`` quantizes, by name; ``wide`` are the others with a known role."""

    recipe: Recipe
    weights: Mapping[str, RoledWeight]
    wide: Mapping[str, WideWeight] = field(default_factory=dict)

    @classmethod
    def of_target(
        cls, census: Sequence[RoledWeight], recipe: Recipe, blocks: Collection[str] | None = None
    ) -> Selection:
        """Select from all weights of a target. A tied LM head is the embedding under the head's name.

        Of the weights that keep their blocks, only those in ``blocks`` have any; None if they are not known. Raises
        ``UsageError`` for an exclusion that matches none of the weights that the recipe would quantize.
        """
        candidates, why = candidates_of(census, recipe), {}
        if blocks is not None:
            without_blocks = [
                name
                for name, weight in candidates.items()
                if name not in blocks and keeps_blocks(recipe.precision(weight.role))
            ]
            why = dict.fromkeys(without_blocks, _NO_BLOCKS)
            candidates = {name: weight for name, weight in candidates.items() if name not in why}
        weights = without(candidates, recipe.exclude)
        embedding = _tied_to_head(census)
        why |= {
            name: f"excluded by {pattern!r}"
            for pattern in recipe.exclude
            for name in candidates.keys() - without(candidates, (pattern,)).keys()
        }
        wide = {}
        for weight in census:
            name, role = (f"{LM_HEAD}.weight", LM_HEAD) if weight is embedding else (weight.name, weight.role)
            if name not in weights:
                wide[weight.name] = WideWeight(role, why.get(name, ""))
        return cls(recipe, weights, wide)

    @classmethod
    def of_drafter(cls, head: DrafterSpec, recipe: Recipe, lowering: Lowering) -> Selection:
        """Select the matrices of a drafter's layers, its feature projection, and its LM head.

        The LM head stays unquantized if no kernels support its codes. For TensorRT, so does the feature projection,
        which a constant is multiplied with too: TensorRT-RTX 1.7 dequantizes it to memory before every product, and
        crashes on small 4-bit ones.
        """
        prefixes: tuple[str, ...] = (_LAYERS,) if lowering.is_tensorrt else (_LAYERS, _FEATURES)
        prefixes += (f"{LM_HEAD}.",) if lowering.has_kernels else ()
        shapes = {name: shape for name, shape in head.expected_shapes().items() if name.startswith(prefixes)}
        weights = {name: RoledWeight(name, shape, DRAFTER_ROLE, 1) for name, shape in shapes.items() if len(shape) == 2}
        return cls(recipe.of_drafter(), weights)

    def only(self, names: Collection[str]) -> Selection:
        """Return this selection with only these weights; all others stay unquantized."""
        return replace(self, weights={name: weight for name, weight in self.weights.items() if name in names})

    @property
    def count(self) -> int:
        """Return the number of values in the selected weights that are multiplied: rows of an embedding are not."""
        return sum(map(_multiplied, self.weights.values()))

    @property
    def key(self) -> dict[str, str]:
        """The part of the recipe that one graph depends on: a target is independent of its drafter's types."""
        return replace(self.recipe, drafter=self.recipe.wide).record()

    def share_without(self, names: Iterable[str]) -> float:
        """Return the share of the selected values that is quantized if ``names`` are not."""
        if not self.count:
            return float(bool(self.weights))
        return 1 - sum(_multiplied(self.weights[name]) for name in names) / self.count


def without(weights: Mapping[str, Any], patterns: tuple[str, ...]) -> dict[str, Any]:
    """Return the weights that no module pattern matches. ``UsageError`` for a pattern that matches none."""
    modules = {module_of(name): name for name in weights}
    out = {modules[module] for module in excluded({module: module for module in modules}, patterns)}
    return {name: weight for name, weight in weights.items() if name not in out}


def candidates_of(census: Sequence[RoledWeight], recipe: Recipe) -> dict[str, RoledWeight]:
    """Return the weights that the recipe quantizes without exclusions."""
    roles = recipe.quantized_roles
    weights, embedding = [*census], _tied_to_head(census)
    if embedding is not None:
        weights.remove(embedding)
        weights.append(replace(embedding, name=f"{LM_HEAD}.weight", role=LM_HEAD))
    return {weight.name: weight for weight in weights if weight.role in roles}


def _tied_to_head(census: Sequence[RoledWeight]) -> RoledWeight | None:
    """Return the embedding if it also serves as LM head, else None."""
    if any(weight.role == LM_HEAD for weight in census):
        return None
    return next((weight for weight in census if weight.role == EMBEDDING), None)


def _multiplied(weight: RoledWeight) -> int:
    """Return the number of values that a weight is multiplied with."""
    return 0 if weight.role == EMBEDDING else weight.count
