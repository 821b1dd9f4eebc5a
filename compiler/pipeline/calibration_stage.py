"""Calibration step of a build or an export, for recipes that use calibrated scales."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...plugins.errors import BuildError, UsageError
from ...plugins.number_formats import NUMBER_FORMATS
from ...plugins.problems import counted
from ..checkpoints.target import Target
from ..console.progress import Progress
from ..precision.calibration.calibration_options import CalibrationOptions
from ..precision.recipes import Recipe
from ..store.phase_clock import Phases
from ..store.stages import StageStore

if TYPE_CHECKING:
    from ...graphs.lowering import Lowering
    from ..precision.calibration.obtain_ranges import InputTypes
    from ..precision.calibration.range_methods import RoundedTo
    from ..precision.calibration.saved_ranges import Scales


def calibrated(
    options: CalibrationOptions,
    target: Target,
    recipe: Recipe,
    lowering: Lowering,
    store: StageStore,
    phase: Phases,
    progress: Progress,
    *,
    model: str = "",
) -> Scales | None:
    """Return the ranges that a target in ``recipe`` needs, obtained as ``options`` specifies; None if it needs none.

    If ranges only reduce the rounding error and no calibration was requested, a checkpoint that cannot be calibrated
    with the bundled samples (for example, for lack of a tokenizer) is quantized without them; the source of its weights
    reports it. Finished layers are kept in ``store``, and the same call resumes from them. Raises ``UsageError`` for
    calibration options where nothing is calibrated and for unusable samples, ``BuildError`` for unusable ranges.
    """
    from ..precision.calibration.dataset import default_limits
    from ..precision.calibration.obtain_ranges import obtain
    from ..precision.weight_source import uncalibrated, unweighted

    types = _input_types(recipe, lowering)
    needed = uncalibrated(target, recipe, lowering)
    better = unweighted(target, recipe, lowering)
    flags = options.given_flags() + (["--scales"] if options.scales is not None else [])
    if not needed and not better:
        if flags:
            raise UsageError(
                f"{' and '.join(flags)} cannot be used: nothing is calibrated for --precision {recipe.name}",
                why="the recipe uses no calibrated input scales, or the checkpoint already has all of them",
                fix="omit the calibration options, or choose a recipe that needs calibration",
            )
        return None
    with phase("calibrate") as record:
        record["for"] = counted({*needed, *better}, "input")
        try:
            scales = obtain(
                options, target, store, progress, model=model, defaults=default_limits(lowering), input_types=types
            )
        except (BuildError, UsageError) as error:
            if needed or flags:
                raise
            record["without"] = error.what
            return None
    return scales


def _input_types(recipe: Recipe, lowering: Lowering) -> InputTypes:
    """Return the types that inputs with calibrated scales are rounded to."""
    from ..precision.calibration.obtain_ranges import InputTypes
    from ..precision.calibration.range_methods import ROUNDED

    def of(name: str) -> RoundedTo | None:
        kind = NUMBER_FORMATS.get(name)
        return ROUNDED.get(kind.number) if kind and kind.is_calibrated(tensorrt=lowering.is_tensorrt) else None

    return InputTypes(of(recipe.activations) or of(recipe.expert_activations), of(recipe.lm_head))
