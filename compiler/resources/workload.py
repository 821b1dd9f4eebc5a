"""What is to be made, as far as disk, memory and time depend on it: the same for a build and for its dry run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...graphs.lowering import TENSORRT, Lowering
from ..checkpoints.head_weights import read_from_target
from ..checkpoints.target_and_drafter import Inputs
from ..precision.recipes import Recipe
from ..request.build_plan import BuildPlan
from ..store.made_for import MadeFor
from ..store.stages import StageStore
from .check import check_needs, needs_of, tidy
from .disk import Disk, disk_of, done_bytes
from .weight_bytes import WeightLine, head_weights, weight_lines
from .work import BuilderWork, BuildWork, Calibration, CalibrationWork, has_to_calibrate, layer_of, rounding_seconds

if TYPE_CHECKING:
    from ...graphs.drafters import DrafterSpec
    from ...graphs.targets.weight_roles import RoledWeight
    from ..checkpoints.target import Target
    from ..precision.calibration.calibration_options import CalibrationAsked


@dataclass(frozen=True)
class Workload:
    """The weights of a target and perhaps a head, in a recipe for a lowering.

    ``shared`` are weights of the head that are read from the target's file, ``kept`` those of the target that are taken
    as the blocks of a GGUF file, ``product`` is the TensorRT that builds plans, if one does. Without ``calibration``
    ranges are given; ``calibrates`` is what a checkpoint was found to need, None where it does not lie here, and
    ``stored`` are weights whose codes it holds.
    """

    census: tuple[RoledWeight, ...]
    recipe: Recipe
    lowering: Lowering
    head: DrafterSpec | None = None
    shared: tuple[str, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict)
    product: str | None = None
    calibration: Calibration | None = None
    calibrates: bool | None = None
    stored: frozenset[str] = frozenset()

    @cached_property
    def lines(self) -> tuple[WeightLine, ...]:
        """The target's weights, by role and type."""
        return weight_lines(self.census, self.recipe, self.lowering, self.kept)

    @cached_property
    def of_head(self) -> tuple[int, int]:
        """How many weights the head's graph has, and their bytes; none where it is not known."""
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
        """The memory and the time of the steps."""
        taken, needed = {*self.kept, *self.stored}, self.calibrates
        if needed is None:
            needed = has_to_calibrate(self.census, self.recipe, self.lowering, taken)
        layers = len({layer for weight in self.census if (layer := layer_of(weight.name))})
        return BuildWork(
            CalibrationWork.of(self.census, self.calibration) if needed and self.calibration else None,
            rounding_seconds(self.census, self.recipe, self.lowering, taken),
            BuilderWork.of(self.product, self.target_bytes, layers) if self.product else None,
        )

    def disk(
        self, store: StageStore, out: Path, made_for: MadeFor, names: Sequence[str] = (), *, is_moved: bool = False
    ) -> Disk:
        """What goes to the cache and to ``out``; ``names`` are others of the model that ``made_for`` names."""
        done = 0 if store.force else done_bytes(store.root, made_for, names)
        has_plans = self.product is not None
        return disk_of(store.root, out, self.bytes, has_plans=has_plans, is_moved=is_moved, done_bytes=done)

    def found_in(self, target: Target) -> Workload:
        """Return the workload of a checkpoint that lies here: what is taken as it is, and what is calibrated."""
        from ..precision.weight_source import kept_blocks, of_target, uncalibrated, unweighted
        from ..precision.weights_stored_quantized import StoredFp8

        source = of_target(target, self.recipe, self.lowering)
        return replace(
            self,
            stored=frozenset(source.storage()[0]) if isinstance(source, StoredFp8) else frozenset(),
            kept=kept_blocks(target, self.recipe, self.lowering),
            calibrates=bool(
                uncalibrated(target, self.recipe, self.lowering) or unweighted(target, self.recipe, self.lowering)
            ),
        )


def check_resources(plan: BuildPlan, inputs: Inputs, store: StageStore) -> list[str]:
    """Refuse what certainly has no room, before hours of work, and return what to tell; see ``check_needs``.

    Raises ``BuildError`` where too little would be multiplied as the recipe says.
    """
    from ..precision.multiplied_share import require_multiplied
    from ..precision.weight_source import selection_of

    target, request = inputs.target, plan.request
    if plan.recipe.quantized_type:
        require_multiplied(selection_of(target, plan.recipe), plan.lowering)
    workload = Workload(
        target.skeleton.weights,
        plan.recipe,
        plan.lowering,
        inputs.head,
        read_from_target(*inputs.drafter, target) if inputs.drafter and plan.shares else (),
        product=plan.platform.backend if plan.makes_plans else None,
        calibration=calibration_of(request.calibration, target.family.text(target.config), plan.lowering),
    ).found_in(target)
    tidy(request, store)
    disk = workload.disk(store, request.out, plan.made_for(), is_moved=plan.is_moved)
    return check_needs(needs_of(disk, workload.work), ignored=request.ignore_limits)


def calibration_of(
    asked: CalibrationAsked, config: Mapping[str, Any], lowering: Lowering = TENSORRT
) -> Calibration | None:
    """What a calibration sends through a decoder with this ``config``; None where ranges are given."""
    if asked.scales is not None:
        return None
    from ..precision.calibration.dataset import default_limits
    from ..precision.calibration.obtain_ranges import limits_of

    limits = limits_of(asked, default_limits(lowering))
    tokens = limits.max_samples * limits.max_length
    return Calibration(tokens, int(config.get("num_experts_per_tok") or 1), asked.device or "cpu")
