"""Steps shared by a build and an export: calibrate, then trace, lower and attach the graph of each half.

Each is a kept stage of one store, timed as a phase. Afterwards, a build makes plans, chooses K and publishes an engine;
an export publishes the graphs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..checkpoints.checkpoint import CONFIG, Checkpoint, take_fingerprints
from ..checkpoints.json_files import read_json
from ..checkpoints.target import Target
from ..checkpoints.target_and_drafter import Inputs
from ..console.progress import Progress, Quiet
from ..precision.calibration.calibration_options import FOLDER
from ..precision.calibration.lm_head_loss import LmHeadLoss
from ..precision.calibration.obtain_ranges import describe
from ..precision.recipes import emulated, requantization_notes, widened
from ..request.build_plan import BuildPlan
from ..store.phase_clock import Phases
from ..store.publish import ADOPTED_FROM, Assembly
from ..store.stages import Stage, StageStore
from .calibration_stage import calibrated
from .component import Component, drafter_component, target_component
from .graph_account import GraphAccount
from .graph_stages import Compiled, attach, trace

if TYPE_CHECKING:
    from ..precision.calibration.saved_ranges import Scales


@dataclass(frozen=True)
class PipelineRun:
    """A running build or export: the store of its stages, its progress and its clock."""

    store: StageStore
    progress: Progress
    phases: Phases

    @classmethod
    def begin(cls, store: StageStore, progress: Progress | None) -> PipelineRun:
        """Start the clock; without ``progress``, nothing is shown."""
        progress = progress or Quiet()
        return cls(replace(store, progress=progress), progress, Phases(progress))

    def making(self, plan: BuildPlan) -> PipelineRun:
        """Return the same run, whose kept stages record that they were made for ``plan``."""
        return replace(self, store=replace(self.store, stage_origin=plan.stage_origin()))


@dataclass(frozen=True)
class Graphs:
    """The finished graphs of a plan, by component, and the calibrated ranges used to quantize them."""

    plan: BuildPlan
    target: Target
    components: tuple[Component, ...]
    compiled: Mapping[str, Compiled]
    ranges: Scales | None

    def stages(self) -> dict[str, Stage]:
        """Return the stages that hold the lowered graphs and their weights, by component."""
        return {name: graph.attached for name, graph in self.compiled.items()}

    def adopted(self) -> frozenset[str]:
        """Return the components whose weights move into an engine in place of a copy.

        They are large, and none is rounded by the build, so making them again takes little longer than copying them.
        """
        if sum(bytes_of(self.stages()).values()) < ADOPTED_FROM:
            return frozenset()
        return frozenset(
            component.name
            for component in self.components
            if not (component.quantized and component.quantized.rounds())
        )

    def account(self) -> GraphAccount:
        """Return the facts about the graphs for manifests and reports."""
        return GraphAccount(
            names={name: graph.attached.path.name for name, graph in self.compiled.items()},
            proofs={name: graph.precision for name, graph in self.compiled.items() if graph.precision},
            shared={name: graph.shared_bytes for name, graph in self.compiled.items() if graph.shared_bytes},
            emulated=tuple(emulated(self.plan.recipe, self.plan.lowering)),
            calibration=describe(self.ranges) if self.ranges else None,
        )

    def notes(self) -> list[str]:
        """Return notes on unexpected effects of the recipe, and the findings of its proof."""
        from ..precision.weight_source import requantized

        recipe, checkpoint = self.plan.recipe, self.target.checkpoint
        again = requantized(self.target, recipe, self.plan.lowering)
        losses = LmHeadLoss.of(self.ranges.head_costs if self.ranges else {})
        heads = [each.note(recipe, tensorrt=self.plan.lowering.is_tensorrt) for each in losses]
        found = [*widened(recipe, checkpoint), *requantization_notes(recipe, checkpoint, again), *filter(None, heads)]
        return [*found, *self.account().notes()]

    def place_side_files(self, assembly: Assembly) -> None:
        """Place the files that accompany the graphs: configurations, calibrated ranges, tokenizer."""
        for component in self.components:
            place_config(assembly, component.checkpoint, component.name)
        if self.ranges:
            self.ranges.save(assembly.folder / FOLDER)
            assembly.enter(FOLDER)
        assembly.place_tokenizer(self.target.folder)


def place_config(assembly: Assembly, checkpoint: Checkpoint, below: str) -> None:
    """Place the configuration that a component was read with into a sub-folder."""
    stored, name, config = checkpoint.folder / CONFIG, f"{below}/{CONFIG}", checkpoint.config
    if config == read_json(stored, ""):
        assembly.place_copy(stored, name)
    else:  # some entries were overridden
        assembly.place_text(name, json.dumps(config, indent=2) + "\n")


def compile_graphs(run: PipelineRun, plan: BuildPlan, inputs: Inputs, store: StageStore | None = None) -> Graphs:
    """Make the graphs of a plan; ``store``, if given, keeps their weights.

    Raises ``UsageError`` or ``BuildError``.
    """
    request, recipe, lowering, target = plan.request, plan.recipe, plan.lowering, inputs.target
    with run.phases("hash", "hash the checkpoints"):
        take_fingerprints([*inputs.checkpoints.values()], run.progress)
    ranges = calibrated(
        request.calibration, target, recipe, lowering, run.store, run.phases, run.progress, model=request.pair.model
    )
    components = [target_component(target, recipe, lowering, ranges)]
    if inputs.drafter:
        components.append(drafter_component(*inputs.drafter, target, recipe, lowering, shares=plan.shares))
    compiled: dict[str, Compiled] = {}
    for component in components:
        with run.phases(f"trace {component.name}") as record:
            traced = trace(run.store, component, recipe.dtype, run.progress)
            record["reused"] = traced.reused
        with run.phases(f"attach {component.name}") as record:
            graph = attach(
                store or run.store, component, traced,
                lowering=lowering, cache_length=plan.cache_length, progress=run.progress,
                embedding=compiled["target"].embedding() if component.targets_embedding else None,
            )  # fmt: skip
            record["reused"] = graph.attached.reused
        compiled[component.name] = graph
    return Graphs(plan, target, tuple(components), compiled, ranges)


def bytes_of(stages: Mapping[str, Stage]) -> dict[str, int]:
    """Return the bytes of all files of each stage."""
    return {name: sum(entry.size for entry in stage.files.values()) for name, stage in stages.items()}
