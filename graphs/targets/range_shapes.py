"""The ranges that a target's calibration must provide, and the modules where they are measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..names import EXPERT_WEIGHTS, LM_HEAD, cache_name, layer_prefix, weight_name

if TYPE_CHECKING:
    from torch import nn

Shape = tuple[int, ...]


@dataclass(frozen=True)
class RangeShapes:
    """The required ranges of a target's calibration.

    Shapes by name: ``()`` for one value, ``(E,)`` for one per expert. ``inputs`` are named by the weight that they are
    multiplied with, ``caches`` by the graph's ``k_cache.i`` and ``v_cache.i``, ``experts`` by module.
    """

    inputs: Mapping[str, Shape]
    caches: Mapping[str, Shape]
    experts: Mapping[str, Shape]


def range_shapes(model: Any) -> RangeShapes:
    """Return the ranges for a target's modules: one for every input that a quantized graph rounds."""
    layers = model.model.layers
    inputs: dict[str, Shape] = {weight_name(LM_HEAD): ()}
    experts: dict[str, Shape] = {}
    for index, layer in enumerate(layers):
        inputs |= {weight_name(name): () for name in linears(layer, layer_prefix(index))}
        for name, module in expert_modules(layer, layer_prefix(index)).items():
            experts[name] = (int(module.num_experts),)
            inputs |= {f"{name}.{weight}": experts[name] for weight in EXPERT_WEIGHTS}
    caches: dict[str, Shape] = {cache_name(kind, index): () for index in range(len(layers)) for kind in "kv"}
    return RangeShapes(inputs, caches, experts)


def linears(module: nn.Module, prefix: str) -> dict[str, Any]:
    """Return the linear modules inside, by full name, without routers, which are not quantized."""
    from torch import nn

    modules = dict(module.named_modules())
    routers = tuple(f"{name}." for name, each in modules.items() if type(each).__name__.endswith("Router"))
    return {
        prefix + name: linear
        for name, linear in modules.items()
        if isinstance(linear, nn.Linear) and not name.startswith(routers)
    }


def expert_modules(module: nn.Module, prefix: str) -> dict[str, Any]:
    """Return the modules inside that hold all expert weights of a layer, by full name."""
    return {
        prefix + name: experts
        for name, experts in module.named_modules()
        if all(hasattr(experts, weight) for weight in EXPERT_WEIGHTS) and hasattr(experts, "num_experts")
    }
