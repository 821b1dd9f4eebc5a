"""What a target's weights are for: each with the role that the module holding it gives it, read without any values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import nn

from . import family_for
from .skeleton import Shape, skeleton

Role = Literal["embedding", "attention", "mlp", "experts", "router", "lm_head", "other"]
ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(frozen=True)
class RoledWeight:
    """One weight of a target by its name in the graph. ``matrices`` is how many matrices it stacks, 0 for a vector."""

    name: str
    shape: Shape
    role: Role
    matrices: int

    @property
    def count(self) -> int:
        """Its numbers."""
        return math.prod(self.shape)


def census(config: Mapping[str, Any]) -> tuple[RoledWeight, ...]:
    """Every weight of the target that ``config`` describes; a tied one once, in the role of what it is tied to.

    Norms, biases, sinks and scalars are ``other``.
    """
    model, tied = skeleton(config), family_for(config).tied(config)
    found = []
    for name, tensor in model.state_dict().items():
        if name not in tied:
            path, _, own = name.rpartition(".")
            shape = tuple(tensor.shape)
            role = _role(path, shape, _chain(model, path))
            found.append(RoledWeight(name, shape, role, _matrices(own, shape, role)))
    return tuple(found)


def _chain(model: nn.Module, path: str) -> list[nn.Module]:
    """The modules from the root down to ``path``."""
    chain = [model]
    for part in filter(None, path.split(".")):
        chain.append(chain[-1].get_submodule(part))
    return chain


def _role(path: str, shape: Shape, chain: Sequence[nn.Module]) -> Role:
    module, names = chain[-1], [type(each).__name__ for each in chain]
    if isinstance(module, nn.Embedding):
        return "embedding"
    if len(shape) == 3 and names[-1].endswith("Experts"):
        return "experts"
    if len(shape) == 2 and any(name.endswith("Router") for name in names):
        return "router"
    if len(shape) != 2 or not isinstance(module, nn.Linear):
        return "other"
    if path == "lm_head":
        return "lm_head"
    if any(name.endswith("Attention") for name in names):
        return "attention"
    return "mlp" if "layers" in path.split(".") else "other"


def _matrices(own: str, shape: Shape, role: Role) -> int:
    if role == "experts":
        return shape[0] * (2 if own.startswith("gate_up") else 1)
    return 1 if len(shape) == 2 and role != "other" else 0
