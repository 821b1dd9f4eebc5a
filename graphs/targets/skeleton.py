"""A target without its weights: the modelling code's modules on the meta device, and what they need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from . import family_for

Shape = tuple[int, ...]


def skeleton(config: Mapping[str, Any]) -> nn.Module:
    """The target's model in ``transformers``, every tensor on the meta device, experts in the op's layout."""
    family = family_for(config)
    with torch.device("meta"):
        model: nn.Module = family.model_class()(family.settings(config)).eval()
    _turn_experts(model)
    return model


def weight_shapes(config: Mapping[str, Any]) -> dict[str, Shape]:
    """Shape of every tensor that the checkpoint of this target must hold, by the name it has in the graph.

    A tied tensor is named once.
    """
    tied = family_for(config).tied(config)
    return {name: tuple(tensor.shape) for name, tensor in skeleton(config).state_dict().items() if name not in tied}


def _turn_experts(model: nn.Module) -> None:
    """Give expert weights the op's layout, ``[E,2I,H]`` and ``[E,H,I]``, where the modelling code has them turned.

    They have no values yet; whoever streams them brings them in this order.
    """
    for module in model.modules():
        if getattr(module, "is_transposed", False):
            for name in ("gate_up_proj", "down_proj"):
                setattr(module, name, nn.Parameter(getattr(module, name).mT.contiguous()))
