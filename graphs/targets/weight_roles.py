"""Roles of a model's weights, determined from their modules, without values."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from .family import Shape

if TYPE_CHECKING:
    from torch import nn

Role = Literal["embedding", "attention", "mlp", "experts", "router", "lm_head", "other", "drafter"]
ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(frozen=True)
class RoledWeight:
    """A weight by its name in the graph. ``matrices`` is the number of stacked matrices, 0 for a vector.

    All matrices of a drafter have the same role.
    """

    name: str
    shape: Shape
    role: Role
    matrices: int

    @property
    def count(self) -> int:
        """The number of values."""
        return math.prod(self.shape)


def census(model: nn.Module, tied: Container[str]) -> tuple[RoledWeight, ...]:
    """Return every weight of a target's ``model`` except those ``tied`` to another.

    Norms, biases, sinks and scalars are ``other``.
    """
    weights = []
    for name, tensor in model.state_dict().items():
        if name not in tied:
            path, _, parameter = name.rpartition(".")
            shape = tuple(tensor.shape)
            role = _role(path, shape, _chain(model, path))
            weights.append(RoledWeight(name, shape, role, _matrices(parameter, shape, role)))
    return tuple(weights)


def _chain(model: nn.Module, path: str) -> list[nn.Module]:
    """Return the modules from the root down to ``path``."""
    chain = [model]
    for part in filter(None, path.split(".")):
        chain.append(chain[-1].get_submodule(part))
    return chain


def _role(path: str, shape: Shape, chain: Sequence[nn.Module]) -> Role:
    from torch import nn

    module, names = chain[-1], [type(m).__name__ for m in chain]
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


def _matrices(parameter: str, shape: Shape, role: Role) -> int:
    if role == "experts":
        return shape[0] * (2 if parameter.startswith("gate_up") else 1)
    return 1 if len(shape) == 2 and role != "other" else 0
