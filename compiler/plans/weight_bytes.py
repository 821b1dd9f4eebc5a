"""How many bytes a target's weights take in a precision, role by role, by arithmetic alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...plugins.errors import UsageError

if TYPE_CHECKING:
    from ...graphs.census import RoledWeight
    from ...graphs.heads import HeadSpec
    from ...graphs.trace import Dtype

BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
_SCALES_PER_MATRIX = 2  # of the weight, and of what it is multiplied with
_ID_BYTES = 8


@dataclass(frozen=True)
class Recipe:
    """``narrow`` is the precision of the matrices in ``narrow_roles``; ``wide`` that of the rest and the KV cache."""

    wide: str
    dtype: Dtype
    narrow: str = ""
    narrow_roles: frozenset[str] = frozenset()
    says: str = ""

    def precision(self, role: str) -> str:
        """What weights of a role are stored in."""
        return self.narrow if role in self.narrow_roles else self.wide


RECIPES: Mapping[str, Recipe] = {
    "fp32": Recipe("fp32", "float32", says="every weight and the KV cache in fp32"),
    "fp16": Recipe("fp16", "float16", says="every weight and the KV cache in fp16; none stays wider"),
    "bf16": Recipe("bf16", "bfloat16", says="every weight and the KV cache in bf16; none stays wider"),
    "fp8": Recipe(
        wide="bf16",
        dtype="bfloat16",
        narrow="fp8",
        narrow_roles=frozenset({"attention", "mlp", "experts"}),
        says="E4M3 for the matrices of attention, mlp and experts; embedding, lm_head, router, norms, biases, sinks "
        "and the KV cache stay bf16",
    ),
}


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
