"""The workload of a build or its dry run, from which disk, memory and time are estimated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...graphs.config_values import experts_per_token
from ...graphs.lowering import TENSORRT, Lowering
from ..checkpoints.head_weights import read_from_target
from ..checkpoints.target_and_drafter import Inputs
from ..precision.recipes import Recipe
from ..request.build_plan import BuildPlan
from ..store.publish import ADOPTED_FROM
from ..store.stage_origin import StageOrigin
from ..store.stages import StageStore
from .check import check_needs, needs_of, remove_leftovers
from .disk import Disk, disk_of, done_bytes
from .weight_bytes import WeightLine, head_weights, weight_lines
from .work import BuilderWork, BuildWork, Calibration, CalibrationWork, layer_of, needs_calibration, rounding_seconds

if TYPE_CHECKING:
    from ...graphs.drafters import DrafterSpec
    from ...graphs.targets.weight_roles import RoledWeight
    from ..checkpoints.target import Target
    from ..precision.calibration.calibration_options import CalibrationOptions


@dataclass(frozen=True)
class Workload:
    """The weights of a target and perhaps a head, in a recipe for a lowering.

    ``shared`` are head weights read from the target's file, ``kept_blocks`` target weights used as blocks of a GGUF
    file, with their type (None if they are not known), and ``product`` is the TensorRT that builds plans, if any.
    ``calibration`` is None if ranges are given; ``calibrates`` tells whether the checkpoint needs calibration, None if
    it is not local. ``stored`` are weights that the checkpoint holds as codes.
    """

    census: tuple[RoledWeight, ...]
    recipe: Recipe
    lowering: Lowering
    head: DrafterSpec | None = None
    shared: tuple[str, ...] = ()
    kept_blocks: Mapping[str, str] | None = None
    product: str | None = None
    calibration: Calibration | None = None
    calibrates: bool | None = None
    stored: frozenset[str] = frozenset()

    @cached_property
    def lines(self) -> tuple[WeightLine, ...]:
        """The target's weights, by role and type."""
        return weight_lines(self.census, self.recipe, self.lowering, self.kept_blocks)

    @cached_property
    def of_head(self) -> tuple[int, int]:
        """The number of weights of the head's graph and their bytes; zeros if it is unknown."""
        return head_weights(self.head, self.recipe, self.lowering, self.shared) if self.head else (0, 0)

    @property
    def target_bytes(self) -> int:
        """The bytes of the target's weights."""
        return sum(line.bytes for line in self.lines)

    @property
    def bytes(self) -> int:
        """The bytes of all weights."""
        return self.target_bytes + self.of_head[1]

    @cached_property
    def work(self) -> BuildWork:
        """The memory and time of the expensive steps."""
        taken, needed = {*(self.kept_blocks or ()), *self.stored}, self.calibrates
        if needed is None:
            needed = needs_calibration(self.census, self.recipe, self.lowering, taken)
        layers = len({layer for weight in self.census if (layer := layer_of(weight.name))})
        return BuildWork(
            CalibrationWork.of(self.census, self.calibration) if needed and self.calibration else None,
            rounding_seconds(self.census, self.recipe, self.lowering, taken),
            BuilderWork.of(self.product, self.target_bytes, layers) if self.product else None,
        )

    def disk(
        self,
        store: StageStore,
        out: Path,
        stage_origin: StageOrigin,
        names: Sequence[str] = (),
        *,
        is_moved: bool = False,
    ) -> Disk:
        """Return the bytes for the cache and ``out``; ``names`` are other names of the model in ``stage_origin``."""
        done = 0 if store.force else done_bytes(store.root, stage_origin, names)
        has_plans = self.product is not None
        adopts = not (has_plans or is_moved or self.work.rounding_seconds) and self.bytes >= ADOPTED_FROM
        return disk_of(
            store.root, out, self.bytes, has_plans=has_plans, is_moved=is_moved, adopts=adopts, done_bytes=done
        )

    def found_in(self, target: Target) -> Workload:
        """Return the workload of a local checkpoint: the weights used unchanged, and the need for calibration."""
        from ..precision.weight_source import kept_blocks, of_target, uncalibrated, unweighted
        from ..precision.weights_stored_quantized import StoredFp8

        source = of_target(target, self.recipe, self.lowering)
        return replace(
            self,
            stored=frozenset(source.storage()[0]) if isinstance(source, StoredFp8) else frozenset(),
            kept_blocks=kept_blocks(target, self.recipe, self.lowering),
            calibrates=bool(
                uncalibrated(target, self.recipe, self.lowering) or unweighted(target, self.recipe, self.lowering)
            ),
        )


def check_resources(plan: BuildPlan, inputs: Inputs, store: StageStore) -> list[str]:
    """Check disk and memory before hours of work, and return warnings; see ``check_needs``.

    Raises ``BuildError`` if too few matmuls would run in the recipe's type.
    """
    from ..precision.quantized_compute import require_multiplied
    from ..precision.weight_source import selection_of

    request = plan.request
    if plan.recipe.quantized_type:
        require_multiplied(selection_of(inputs.target, plan.recipe, plan.lowering), plan.lowering)
    workload = workload_of(plan, inputs)
    remove_leftovers(request, store)
    disk = workload.disk(store, request.out, plan.stage_origin(), is_moved=plan.is_moved)
    return check_needs(needs_of(disk, workload.work), ignored=request.ignore_limits)


def workload_of(plan: BuildPlan, inputs: Inputs) -> Workload:
    """Return the workload of a plan for checkpoints that were read."""
    target = inputs.target
    return Workload(
        target.skeleton.weights,
        plan.recipe,
        plan.lowering,
        inputs.head,
        read_from_target(*inputs.drafter, target) if inputs.drafter and plan.shares else (),
        product=plan.platform.backend if plan.makes_plans else None,
        calibration=calibration_of(plan.request.calibration, target.family.text(target.config), plan.lowering),
    ).found_in(target)


def calibration_of(
    options: CalibrationOptions, config: Mapping[str, Any], lowering: Lowering = TENSORRT
) -> Calibration | None:
    """Return the calibration of a decoder with this ``config``; None if ranges are given."""
    if options.scales is not None:
        return None
    from ..precision.calibration.dataset import default_limits
    from ..precision.calibration.obtain_ranges import limits_of

    limits = limits_of(options, default_limits(lowering))
    tokens = limits.max_samples * limits.max_length
    return Calibration(tokens, int(experts_per_token(config) or 1), options.device or "cpu")
