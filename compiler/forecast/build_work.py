"""What a build or an export does beside tracing and writing: about, by what was measured on a CPU.

None of it is a bound. ``_READ`` and ``_ROUND`` are seconds for a number on one core, from a checkpoint in BF16 that is
in the page cache and for codes of a matrix that lies in memory (``benchmarks/rounding.py``); ``_BUILDER`` is what the
process that builds a plan held at its peak, by the bytes of the weights, with TensorRT-RTX 1.7
(``benchmarks/aot_builds.py``). Full TensorRT was never measured.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..precision.quantization_schemes import AFFINE, rounds_input, scheme_of
from ..precision.recipes import Recipe
from ..precision.weight_selection import Selection

if TYPE_CHECKING:
    from ...graphs.lowering import Lowering
    from ...graphs.targets.weight_roles import RoledWeight

_READ = 0.6e-9
_ROUND = {"fp8": 6.6e-9, "int8": 6.8e-9, "mxfp8": 8.4e-9, "int4": 14.8e-9}
_FIT = 50e-9  # a scale and a least value for each block
_BUILDER = 3.07
_FP32 = 4
_LAYERS = "layers"


@dataclass(frozen=True)
class BuildWork:
    """Bytes of memory and seconds of steps, 0 where there is no such step.

    ``calibration_bytes``: the largest layer in FP32. ``calibration_seconds`` are those of reading every layer; what its
    tokens take to compute comes on top. ``rounding_seconds`` are spent while weights are written, if the checkpoint
    holds them wide. ``builder_bytes`` are those of TensorRT's own process; of an export and of ONNX Runtime 0.
    """

    calibration_bytes: int
    calibration_seconds: float
    rounding_seconds: float
    builder_bytes: int

    @classmethod
    def of(
        cls,
        census: Iterable[RoledWeight],
        recipe: Recipe,
        lowering: Lowering,
        weight_bytes: int,
        *,
        plans: bool,
        kept: Collection[str] = (),
    ) -> BuildWork:
        """Work it out from the weights of a target; ``plans``: whether TensorRT builds plans of its graphs.

        ``kept`` are weights that are taken as they are stored.
        """
        every = tuple(census)
        layers: Counter[str] = Counter()
        for weight in every:
            layers[_layer(weight.name)] += weight.count
        layers.pop("", 0)
        calibrates = _calibrates(every, recipe, lowering, kept)
        return cls(
            calibration_bytes=_FP32 * max(layers.values(), default=0) if calibrates else 0,
            calibration_seconds=_READ * sum(layers.values()) if calibrates else 0.0,
            rounding_seconds=_rounding(every, recipe, lowering, kept),
            builder_bytes=builder_bytes(weight_bytes) if plans else 0,
        )


def builder_bytes(weight_bytes: int) -> int:
    """Memory of the process that builds a plan of this many bytes of weights, about."""
    return math.ceil(_BUILDER * weight_bytes)


def _layer(name: str) -> str:
    """The layer that a weight is in, as a prefix of its name; empty for those of none."""
    parts = name.split(".")
    return ".".join(parts[: parts.index(_LAYERS) + 2]) if _LAYERS in parts else ""


def _calibrates(census: tuple[RoledWeight, ...], recipe: Recipe, lowering: Lowering, kept: Collection[str]) -> bool:
    """Whether something is rounded by what is measured before; a checkpoint in FP8 may have it already."""
    if recipe.kv_cache == "fp8":
        return True
    if not recipe.quantized_type:
        return False
    for weight in Selection.of_target(census, recipe).weights.values():
        how = scheme_of(recipe.precision(weight.role), lowering, weight)
        if how.packed == AFFINE and weight.name not in kept:
            return True
        if how.input is not None and not how.powers and rounds_input(recipe, weight.role):
            return True
    return False


def _rounding(census: tuple[RoledWeight, ...], recipe: Recipe, lowering: Lowering, kept: Collection[str]) -> float:
    """Seconds: a weight with few scales is read twice, one with blocks of them once, and one that is ``kept`` not."""
    if not recipe.quantized_type:
        return 0.0
    seconds = 0.0
    for weight in Selection.of_target(census, recipe).weights.values():
        if weight.name in kept:
            continue
        kind = recipe.precision(weight.role)
        how = scheme_of(kind, lowering, weight)
        passes = 1 if how.block else 2
        seconds += weight.count * (passes * _READ + (_FIT if how.packed == AFFINE else _ROUND[kind]))
    return seconds
