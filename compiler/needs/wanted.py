"""What is to be made, as far as disk, memory and time depend on it: the same for a build and for its dry run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...graphs.lowering import TENSORRT, Lowering
from ..precision.recipes import Recipe
from ..store.made_for import MadeFor
from ..store.stages import StageStore
from .build_work import BuildWork, Calibration
from .disk import Disk, disk_of, done_bytes
from .weight_bytes import WeightLine, head_weights, weight_lines

if TYPE_CHECKING:
    from ...graphs.drafters import DrafterSpec
    from ...graphs.targets.weight_roles import RoledWeight
    from ..checkpoints.target import Target
    from ..precision.precision_options import CalibrationAsked


@dataclass(frozen=True)
class Wanted:
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
    def bytes(self) -> int:
        """The bytes of all of them."""
        return sum(line.bytes for line in self.lines) + self.of_head[1]

    @cached_property
    def work(self) -> BuildWork:
        """The memory and the time of the steps."""
        return BuildWork.of(
            self.census,
            self.recipe,
            self.lowering,
            sum(line.bytes for line in self.lines),
            calibration=self.calibration,
            product=self.product,
            kept={*self.kept, *self.stored},
            calibrates=self.calibrates,
        )

    def disk(
        self, store: StageStore, out: Path, made_for: MadeFor, names: Sequence[str] = (), *, is_moved: bool = False
    ) -> Disk:
        """What goes to the cache and to ``out``; ``names`` are others of the model that ``made_for`` names."""
        done = 0 if store.force else done_bytes(store.root, made_for, names)
        has_plans = self.product is not None
        return disk_of(store.root, out, self.bytes, has_plans=has_plans, is_moved=is_moved, done_bytes=done)


def calibration_of(
    asked: CalibrationAsked, config: Mapping[str, Any], lowering: Lowering = TENSORRT
) -> Calibration | None:
    """What a calibration sends through a decoder with this ``config``; None where ranges are given."""
    if asked.scales is not None:
        return None
    from ..precision.calibration import default_limits
    from ..precision.calibration.obtain_ranges import limits_of

    limits = limits_of(asked, default_limits(lowering))
    tokens = limits.max_samples * limits.max_length
    return Calibration(tokens, int(config.get("num_experts_per_tok") or 1), asked.device or "cpu")


def of_checkpoint(wanted: Wanted, target: Target) -> Wanted:
    """What is wanted of a checkpoint that lies here: what of it is taken as it is, and whether it is calibrated."""
    from ..precision.weight_source import kept_blocks, of_target, uncalibrated, unweighted
    from ..precision.weights_stored_quantized import StoredFp8

    recipe, lowering = wanted.recipe, wanted.lowering
    source = of_target(target, recipe, lowering)
    is_stored = isinstance(source, StoredFp8)
    return replace(
        wanted,
        stored=frozenset(source.storage()[0]) if source and is_stored else frozenset(),
        kept=kept_blocks(target, recipe, lowering),
        calibrates=bool(uncalibrated(target, recipe, lowering) or unweighted(target, recipe, lowering)),
    )
