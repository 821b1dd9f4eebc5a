"""How many bytes a target's weights take in a precision, role by role, by arithmetic alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...plugins.errors import UsageError
from ..recipes import RECIPES, Recipe

if TYPE_CHECKING:
    from ...graphs.census import RoledWeight
    from ...graphs.heads import HeadSpec

BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
_SCALES_PER_MATRIX = 2  # of the weight, and of what it is multiplied with
_ID_BYTES = 8


@dataclass(frozen=True)
class WeightLine:
    """The weights of one role together."""

    role: str
    count: int
    precision: str
    bytes: int


def recipe(precision: str) -> Recipe:
    """The recipe by its name. Raises ``UsageError`` naming those that can be planned."""
    if precision not in RECIPES:
        raise UsageError(
            f"the precision {precision!r} cannot be planned",
            why=f"what its weights take is known for {', '.join(RECIPES)}",
            fix="choose one of those",
        )
    return RECIPES[precision]


def weight_lines(census: Iterable[RoledWeight], precision: str) -> tuple[WeightLine, ...]:
    """A line for every role that the target has weights of, and one for the scales of its narrow matrices.

    A narrow matrix has two scales in FP32; the experts' gate, up and down projections have theirs each.
    """
    from ...graphs.census import ROLES

    chosen, weights = recipe(precision), tuple(census)
    counts = {role: sum(each.count for each in weights if each.role == role) for role in ROLES}
    narrow = sum(each.matrices for each in weights if each.role in chosen.narrow_roles)
    lines = [line(role, count, chosen.precision(role)) for role, count in counts.items() if count]
    return (*lines, line("scales", narrow * _SCALES_PER_MATRIX, "fp32")) if narrow else tuple(lines)


def line(role: str, count: int, precision: str) -> WeightLine:
    """``count`` weights stored in ``precision``."""
    return WeightLine(role, count, precision, count * BYTES[precision])


def head_weights(head: HeadSpec, precision: str) -> tuple[int, int]:
    """How many weights the drafter has, and their bytes. Its ids stay integers; what it shares is the target's."""
    own = {name: math.prod(shape) for name, shape in head.expected_shapes().items() if name not in head.shared}
    ids = own.pop("d2t", 0)
    count = sum(own.values())
    return count + ids, count * BYTES[precision] + ids * _ID_BYTES
