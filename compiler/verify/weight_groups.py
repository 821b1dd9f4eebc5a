"""Group the quantized matrices of a target: attention, MLP or experts of a layer.

Each group has its patterns for ``build --exclude``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from ...graphs.names import layer_of, module_of
from ..precision.exclude_patterns import excluded

if TYPE_CHECKING:
    from ..precision.weight_source import WeightSource

_MODEL = "model."


@dataclass(frozen=True)
class Group:
    """Matrices with a display ``name`` (``layer 3 mlp``). ``patterns`` match its ``weights`` and no others."""

    name: str
    layer: int | None
    weights: tuple[str, ...]
    patterns: tuple[str, ...]


def groups_of(source: WeightSource) -> list[Group]:
    """Group all weights that the source quantizes, in the order of the layers."""
    quantized = source.storage()[0]
    together: dict[tuple[int | None, str], list[str]] = defaultdict(list)
    for name, weight in source.selection.weights.items():
        if name in quantized:
            together[layer_of(name), weight.role].append(name)
    modules = [module_of(name) for name in quantized]
    return [
        Group(
            role if layer is None else f"layer {layer} {role}",
            layer,
            tuple(names),
            _patterns([module_of(name) for name in names], modules),
        )
        for (layer, role), names in together.items()
    ]


def patterns_of(groups: Iterable[Group], every: Iterable[Group]) -> tuple[str, ...]:
    """Return the patterns that exclude ``groups``; a layer that is excluded entirely has one pattern."""
    groups, every = list(groups), list(every)
    patterns: list[str] = []
    for group in groups:
        layer = [other for other in every if group.layer is not None and other.layer == group.layer]
        is_whole_layer = layer and all(other in groups for other in layer)
        patterns += (f"layers.{group.layer}.*",) if is_whole_layer else group.patterns
    return tuple(dict.fromkeys(patterns))


def _patterns(names: list[str], every: list[str]) -> tuple[str, ...]:
    """Return one pattern that matches only the modules of ``names`` among ``every``, or else all of their names."""
    columns = zip(*(name.split(".") for name in names), strict=False)
    prefix = ".".join(column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns))
    if len(names) > 1 and prefix:
        pattern = f"{prefix.removeprefix(_MODEL)}.*"
        if excluded({name: name for name in every}, [pattern]) == set(names):
            return (pattern,)
    return tuple(name.removeprefix(_MODEL) for name in names)
