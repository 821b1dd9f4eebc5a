"""The skeleton of a target: its modules on the meta device without weights, and the facts derived from them."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ..modelling_errors import modelling
from . import family_for
from .family import Config, Shape
from .range_shapes import RangeShapes, range_shapes
from .weight_roles import RoledWeight, census

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class SkeletonFacts:
    """The weights of a target's graph, and the ranges that a calibration provides."""

    weights: tuple[RoledWeight, ...]
    range_shapes: RangeShapes


class Skeleton:
    """The modules of the target that ``config`` describes, created once, on first use.

    ``file`` is the origin of the configuration. The modules are never modified: ``modules`` and
    ``modules_for_tracing`` return copies. With known ``facts``, they are created only for these copies.
    """

    def __init__(self, config: Config, file: str = "config.json", facts: SkeletonFacts | None = None) -> None:
        self.config, self.file = config, file
        self.family = family_for(config)
        self._known = facts

    @cached_property
    def facts(self) -> SkeletonFacts:
        """Facts derived from the modules."""
        if self._known is not None:
            return self._known
        weights = census(self.modules_for_tracing(), self.family.tied(self.config))
        return SkeletonFacts(weights, range_shapes(self._built))

    def with_facts(self, facts: SkeletonFacts) -> Skeleton:
        """Return a skeleton of the same configuration whose facts are known."""
        return Skeleton(self.config, self.file, facts)

    @property
    def weights(self) -> tuple[RoledWeight, ...]:
        """Every weight that the checkpoint of this target must contain; tied ones once."""
        return self.facts.weights

    @cached_property
    def shapes(self) -> dict[str, Shape]:
        """The shape of each of ``weights`` by name."""
        return {weight.name: weight.shape for weight in self.weights}

    @property
    def range_shapes(self) -> RangeShapes:
        """The ranges that a calibration of this target must provide."""
        return self.facts.range_shapes

    def modules(self) -> nn.Module:
        """The target's model in ``transformers``, every tensor on the meta device."""
        return deepcopy(self._built)

    def modules_for_tracing(self) -> nn.Module:
        """Return the model with experts in the op's layout."""
        model = self.modules()
        _turn_experts(model)
        return model

    @cached_property
    def _built(self) -> nn.Module:
        import torch

        with modelling(self.file), torch.device("meta"):
            model: nn.Module = self.family.model_class()(self.family.settings(self.config)).eval()
        return model


def _turn_experts(model: nn.Module) -> None:
    """Change expert weights to the op's layout, ``[E,2I,H]`` and ``[E,H,I]``, where the modeling code transposes them.

    They have no values yet; streaming provides them in this layout.
    """
    from torch import nn

    for module in model.modules():
        if getattr(module, "is_transposed", False):
            for name in ("gate_up_proj", "down_proj"):
                setattr(module, name, nn.Parameter(getattr(module, name).mT.contiguous()))
