"""The stations that a build and an export share: calibrate, then trace, lower and attach the graph of each half.

Each is a kept stage of one store, timed as a phase. What differs comes after: a build makes plans, chooses K and
publishes an engine; an export publishes the graphs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...graphs.drafters import DrafterSpec
from ..checkpoints.checkpoint import CONFIG, Checkpoint, take_fingerprints
from ..checkpoints.head_weights import read_from_target
from ..checkpoints.json_files import read_json
from ..checkpoints.target import Target
from ..console.progress import Progress, Quiet
from ..precision.calibration.obtain_ranges import describe
from ..precision.precision_options import FOLDER, CalibrationAsked
from ..precision.recipes import Recipe, emulated, twice_rounded, widened
from ..store.phase_clock import Phases
from ..store.publish import Assembly
from ..store.stages import Stage, StageStore
from .calibration_stage import calibrated
from .graph_stages import Compiled, attach, trace
from .model_half import Half, drafter_half, target_half
from .reports.graph_account import GraphAccount

if TYPE_CHECKING:
    from ...graphs.lowering import Lowering
    from ..needs.wanted import Wanted
    from ..precision.calibration import Scales


@dataclass(frozen=True)
class PipelineRun:
    """A build or an export under way: where its steps are kept, who watches it, and its clock."""

    store: StageStore
    progress: Progress
    phases: Phases

    @classmethod
    def begin(cls, store: StageStore, progress: Progress | None) -> PipelineRun:
        """Start the clock; without ``progress`` nothing is shown."""
        progress = progress or Quiet()
        return cls(replace(store, progress=progress), progress, Phases(progress))


@dataclass(frozen=True)
class Blueprint:
    """Which graphs to make: of a target and perhaps a drafter, in which recipe, for which lowering and caches.

    ``shares``: the drafter's graph will lie beside the target's, and reads from its file what is the same in both.
    """

    target: Target
    drafter: tuple[Checkpoint, DrafterSpec] | None
    recipe: Recipe
    lowering: Lowering
    cache_length: int
    shares: bool = False

    def halves(self, ranges: Scales | None) -> list[Half]:
        """Return what each graph is made from; ``ranges`` are the calibrated ones of the target's inputs."""
        halves = [target_half(self.target, self.recipe, self.lowering, ranges)]
        if self.drafter:
            halves.append(drafter_half(*self.drafter, self.target, self.recipe, self.lowering, shares=self.shares))
        return halves

    @property
    def shared(self) -> tuple[str, ...]:
        """The weights of the drafter that are read from the target's file."""
        return read_from_target(*self.drafter, self.target) if self.drafter and self.shares else ()

    def warnings(self) -> list[str]:
        """List what the recipe does that a user may not expect."""
        from ..precision.weight_source import rounded_again

        checkpoint, again = self.target.checkpoint, rounded_again(self.target, self.recipe, self.lowering)
        return [*widened(self.recipe, checkpoint), *twice_rounded(self.recipe, checkpoint, again)]

    def wanted(self, calibration: CalibrationAsked, product: str | None = None) -> Wanted:
        """Return what disk, memory and time depend on; ``product`` is the TensorRT that builds plans, if one does."""
        from ..needs.wanted import Wanted, calibration_of, of_checkpoint

        target, head = self.target, self.drafter[1] if self.drafter else None
        sent = calibration_of(calibration, target.family.text(target.config), self.lowering)
        weights = target.skeleton.weights
        return of_checkpoint(
            Wanted(weights, self.recipe, self.lowering, head, self.shared, product=product, calibration=sent), target
        )

    def require_multiplied(self) -> None:
        """Raise ``BuildError`` where too little would be multiplied as the recipe says, before hours of work."""
        from ..precision.multiplied_share import require_multiplied
        from ..precision.weight_source import selection_of

        if self.recipe.quantized_type:
            require_multiplied(selection_of(self.target, self.recipe), self.lowering)


@dataclass(frozen=True)
class Graphs:
    """The finished graphs of a blueprint, by half, and the calibrated ranges that they round with."""

    blueprint: Blueprint
    halves: tuple[Half, ...]
    compiled: Mapping[str, Compiled]
    ranges: Scales | None

    def stages(self) -> dict[str, Stage]:
        """Return the stages that hold the lowered graphs and their weights, by half."""
        return {name: graph.attached for name, graph in self.compiled.items()}

    def account(self) -> GraphAccount:
        """Return what manifests and reports say of them."""
        return GraphAccount(
            names={name: graph.attached.path.name for name, graph in self.compiled.items()},
            proofs={name: graph.precision for name, graph in self.compiled.items() if graph.precision},
            shared={name: graph.shared_bytes for name, graph in self.compiled.items() if graph.shared_bytes},
            emulated=tuple(emulated(self.blueprint.recipe, self.blueprint.lowering)),
            calibration=describe(self.ranges) if self.ranges else None,
        )

    def furnish(self, assembly: Assembly, tokenizer: Path) -> None:
        """Place what lies beside the graphs: configurations, calibrated ranges, and the files of a tokenizer."""
        for half in self.halves:
            stored, name, config = half.checkpoint.folder / CONFIG, f"{half.name}/{CONFIG}", half.checkpoint.config
            if config == read_json(stored, ""):
                assembly.place_copy(stored, name)
            else:  # with what was said in place of it
                assembly.place_text(name, json.dumps(config, indent=2) + "\n")
        if self.ranges:
            self.ranges.save(assembly.folder / FOLDER)
            assembly.enter(FOLDER)
        assembly.place_tokenizer(tokenizer)


def compile_graphs(
    run: PipelineRun,
    blueprint: Blueprint,
    ranges_from: CalibrationAsked,
    *,
    model: str,
    store: StageStore | None = None,
) -> Graphs:
    """Make the graphs of ``blueprint``; ``model`` is what reports call the target.

    Their weights are kept in ``store``, if that is given. Raises ``UsageError`` or ``BuildError``.
    """
    recipe, lowering = blueprint.recipe, blueprint.lowering
    blueprint.require_multiplied()
    checkpoints = [blueprint.target.checkpoint, *(blueprint.drafter or ())[:1]]
    with run.phases("hash", "hash the checkpoints"):
        take_fingerprints(checkpoints, run.progress)
    ranges = calibrated(
        ranges_from, blueprint.target, recipe, lowering, run.store, run.phases, run.progress,
        model=model,
    )  # fmt: skip
    halves = tuple(blueprint.halves(ranges))
    compiled: dict[str, Compiled] = {}
    for half in halves:
        with run.phases(f"trace {half.name}") as record:
            traced = trace(run.store, half, recipe.dtype, run.progress)
            record["reused"] = traced.reused
        with run.phases(f"attach {half.name}") as record:
            graph = attach(
                store or run.store, half, traced,
                lowering=lowering, cache_length=blueprint.cache_length, progress=run.progress,
                target=compiled.get("target"),
            )  # fmt: skip
            record["reused"] = graph.attached.reused
        compiled[half.name] = graph
    return Graphs(blueprint, halves, compiled, ranges)


def bytes_of(stages: Mapping[str, Stage]) -> dict[str, int]:
    """Count the bytes of all files of each stage."""
    return {name: sum(entry.size for entry in stage.files.values()) for name, stage in stages.items()}
