"""The step of a build or an export that measures what its recipe rounds with calibrated scales, where there is any."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...plugins.errors import BuildError, UsageError
from ...plugins.problems import counted
from ..checkpoints.target import Target
from ..console.progress import Progress
from ..precision.calibration.calibration_options import CalibrationOptions
from ..precision.recipes import Recipe
from ..store.phase_clock import Phases
from ..store.stages import StageStore

if TYPE_CHECKING:
    from ...graphs.lowering import Lowering
    from ..precision.calibration.saved_ranges import Scales


def calibrated(
    asked: CalibrationOptions,
    target: Target,
    recipe: Recipe,
    lowering: Lowering,
    store: StageStore,
    phase: Phases,
    progress: Progress,
    *,
    model: str = "",
) -> Scales | None:
    """The ranges that a target in ``recipe`` needs, from where ``asked`` says; None where it needs none.

    Where they only make rounding lose less, and nothing was asked for, a checkpoint that cannot be calibrated with the
    bundled samples (it has no tokenizer, say) is rounded without; the source of its weights tells.
    Finished layers are kept in ``store``, and the same call goes on from there. Raises ``UsageError`` for a way of
    calibrating where nothing is and for samples that are no use, ``BuildError`` for such ranges.
    """
    from ..precision.calibration.dataset import default_limits
    from ..precision.calibration.obtain_ranges import obtain
    from ..precision.weight_source import uncalibrated, unweighted

    needed = uncalibrated(target, recipe, lowering)
    better = unweighted(target, recipe, lowering)
    flags = asked.given() + (["--scales"] if asked.scales is not None else [])
    if not needed and not better:
        if flags:
            raise UsageError(
                f"{' and '.join(flags)} cannot be used: nothing is calibrated for --precision {recipe.name} here",
                why="no input is rounded with a scale that is measured before, or the checkpoint has all of them",
                fix="leave it out",
            )
        return None
    with phase("calibrate") as record:
        record["for"] = counted({*needed, *better}, "input")
        try:
            scales = obtain(asked, target, store, progress, model=model, defaults=default_limits(lowering))
        except (BuildError, UsageError) as error:
            if needed or flags:
                raise
            record["without"] = error.what
            return None
    return scales
