"""What a build or an export does beside tracing: memory of its steps and time, by what ``measured.py`` holds.

None of it is a bound but what is called least. Full TensorRT was never measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...plugins.number_formats import AFFINE, NUMBER_FORMATS
from ..precision.quantization_schemes import rounds_input, scheme_of
from ..precision.recipes import Recipe
from ..precision.weight_selection import Selection
from . import measured
from .builder_work import BuilderWork

if TYPE_CHECKING:
    from ...graphs.lowering import Lowering
    from ...graphs.targets.weight_roles import RoledWeight

_FP32 = 4
_LAYERS = "layers"


@dataclass(frozen=True)
class Calibration:
    """What is sent through the layers to calibrate them: ``tokens`` at most, each by ``experts`` of a layer's.

    ``device`` has the layers in its memory (``cpu``, ``cuda:1``).
    """

    tokens: int
    experts: int = 1
    device: str = "cpu"

    def share(self, weight: RoledWeight) -> float:
        """The share of a weight that a token is multiplied with."""
        return min(self.experts / weight.shape[0], 1.0) if weight.role == "experts" else 1.0


@dataclass(frozen=True)
class CalibrationWork:
    """What a calibration takes: ``bytes`` of the largest layer in FP32, ``seconds`` to read every layer.

    The ``operations`` of at most ``tokens`` come on top. Both are the ``device``'s.
    """

    bytes: int
    seconds: float
    tokens: int
    operations: float
    device: str = "cpu"

    @property
    def is_here(self) -> bool:
        """Whether it takes memory and processors of this machine."""
        return self.device == "cpu"

    @classmethod
    def of(cls, census: Iterable[RoledWeight], calibration: Calibration) -> CalibrationWork:
        """Work it out from the weights of a target."""
        layers: Counter[str] = Counter()
        passed = 0.0  # weights that a token meets
        for weight in census:
            if layer := _layer(weight.name):
                layers[layer] += weight.count
                passed += weight.count * calibration.share(weight)
        tokens = calibration.tokens
        largest, read = _FP32 * max(layers.values(), default=0), measured.READ * layers.total()
        return cls(largest, read, tokens, 2 * passed * tokens, calibration.device)


@dataclass(frozen=True)
class BuildWork:
    """The steps of a build that take long or much: None, and 0 seconds, where there is no such step.

    ``rounding_seconds`` are spent while weights are written, if the checkpoint holds them wide. ``builder`` is there
    where TensorRT builds plans.
    """

    calibration: CalibrationWork | None
    rounding_seconds: float
    builder: BuilderWork | None

    @classmethod
    def of(
        cls,
        census: Iterable[RoledWeight],
        recipe: Recipe,
        lowering: Lowering,
        weight_bytes: int,
        *,
        calibration: Calibration | None,
        product: str | None = None,
        kept: Collection[str] = (),
        calibrates: bool | None = None,
    ) -> BuildWork:
        """Work it out from the weights of a target; ``product`` is the TensorRT that builds a plan of its graph.

        ``kept`` are weights that are taken as they are stored. Without ``calibration`` ranges are there already.
        ``calibrates`` is what a checkpoint was found to need, if it was looked at.
        """
        every = tuple(census)
        needed = _calibrates(every, recipe, lowering, kept) if calibrates is None else calibrates
        layers = len({layer for weight in every if (layer := _layer(weight.name))})
        return cls(
            calibration=CalibrationWork.of(every, calibration) if needed and calibration else None,
            rounding_seconds=_rounding(every, recipe, lowering, kept),
            builder=BuilderWork.of(product, weight_bytes, layers) if product else None,
        )


def _layer(name: str) -> str:
    """The layer that a weight is in, as a prefix of its name; empty for those of none."""
    parts = name.split(".")
    return ".".join(parts[: parts.index(_LAYERS) + 2]) if _LAYERS in parts else ""


def _calibrates(census: tuple[RoledWeight, ...], recipe: Recipe, lowering: Lowering, kept: Collection[str]) -> bool:
    """Whether something is rounded by what is measured before; a checkpoint in FP8 may have it already."""
    if recipe.calibrates_caches:
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
        fit = measured.FIT if how.packed == AFFINE else NUMBER_FORMATS[kind].rounding_seconds
        seconds += weight.count * (passes * measured.READ + fit)
    return seconds
