"""The speed estimate of a finished engine or export, next to the measurements of its build."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...engines.policy.prior import isotonic
from ...graphs import graph_files
from ...plugins.cpu import LIBRARY, is_off
from ..checkpoints.target_and_drafter import Inputs
from ..hardware.cpu_probe import CpuSpeed, ProbeShape, kept_cpu_speed
from ..hardware.gpus import is_architecture
from ..request.build_plan import BuildPlan
from ..resources.speed.acceptance_lengths import AcceptanceLengths
from ..resources.speed.devices import cpu_device, gpu_device
from ..resources.speed.model_speed import SpeedQuestion, drafter_of, speed_question
from ..resources.speed.pass_work import GraphWork
from ..resources.speed.round_estimate import CONTEXT, SHOWN, SpeedEstimate, TimedDevice, estimate_rounds
from ..resources.speed.target_work import GraphCounts, target_work
from ..resources.workload import workload_of
from .choose_k import KChoice
from .shared_steps import Graphs, PipelineRun

if TYPE_CHECKING:
    from ...engines.folder.manifest import Manifest

_CONTEXT = 75  # tokens: the prompts from which a build chooses K, and half of what it decodes


@dataclass(frozen=True)
class EngineSpeed:
    """The work of an engine's graphs. ``gpu`` is the GPU that the request names, ``probe`` the layers to measure."""

    target: GraphWork
    drafter: GraphWork | None
    question: SpeedQuestion
    notes: tuple[str, ...]
    gpu: str | None
    probe: ProbeShape

    @classmethod
    def of(cls, plan: BuildPlan, inputs: Inputs, graphs: Graphs) -> EngineSpeed:
        """Return the work of finished graphs."""
        target, recipe, lowering = inputs.target, plan.recipe, plan.lowering
        spec, text, workload = target.spec, target.family.text(target.config), workload_of(plan, inputs)
        counts, compiled = GraphCounts(), graphs.compiled["target"]
        if lowering.is_tensorrt or any(weight.role == "experts" for weight in workload.census):
            model = graph_files.load(compiled.attached.path / compiled.files.model)
            counts = GraphCounts.of_graph(model, workload.census, lowering)
        gpus = plan.request.backend.gpus
        question = speed_question(plan.request, plan.speculation, inputs.head)
        drafter, notes = drafter_of(question, inputs.head, spec, text, recipe, lowering)
        work = target_work(workload.census, workload.lines, recipe, spec, text, counts)
        return cls(
            target=work,
            drafter=drafter,
            question=question,
            notes=tuple(notes),
            gpu=gpus[0] if len(gpus) == 1 and not is_architecture(gpus[0]) and lowering.is_tensorrt else None,
            probe=ProbeShape(
                kind=_main_type(work),
                hidden=spec.hidden_size,
                queries=int(text["num_attention_heads"]) * spec.caches[0].head_dim,
                keys=spec.caches[0].heads * spec.caches[0].head_dim,
                inner=int(text.get("moe_intermediate_size") or text["intermediate_size"]),
                bytes=round(work.over(1, 0).weight_bytes),
                columns=plan.speculation.max_num_speculative_tokens + 1,
            ),
        )

    @property
    def pass_bytes(self) -> list[int]:
        """The bytes of weights that a pass of the target over 1, 2, ... columns of one request reads."""
        return [round(self.target.over(columns, 0).weight_bytes) for columns in range(1, self.probe.columns + 1)]

    def on_gpu(self, choice: KChoice | None = None) -> SpeedEstimate | None:
        """Estimate for the named GPU; None without one. ``choice`` was measured there."""
        return self._on(gpu_device(self.gpu), choice) if self.gpu else None

    def on_cpu(self, speed: CpuSpeed, choice: KChoice) -> SpeedEstimate:
        """Estimate for this machine's CPU, next to the rounds measured while choosing K."""
        return self._on(cpu_device(speed), choice)

    def _on(self, device: TimedDevice, choice: KChoice | None) -> SpeedEstimate:
        question = self.question
        lengths = _measured_lengths(choice) if choice else question.lengths
        measured = _milliseconds(choice) if choice else {}
        shown = (
            {0, choice.k} | {k for k in SHOWN if k in measured} if choice else {*SHOWN, question.requested_drafts or 0}
        )
        found = estimate_rounds(
            self.target,
            self.drafter,
            question.method,
            device,
            lengths,
            max_drafts=question.max_drafts,
            context=_CONTEXT if choice else CONTEXT,
            shown=sorted(shown),
            notes=() if choice else self.notes,
        )
        return found.with_measured(measured)


def speed_of_engine(
    speed: EngineSpeed, run: PipelineRun, manifest: Manifest, folder: Path, choice: KChoice | None
) -> SpeedEstimate | None:
    """Return the estimate for the report of the engine in ``folder``; None if there is no device to estimate for."""
    if choice is None or manifest.backend.gpus:
        return speed.on_gpu(choice)
    library = folder / "plugins" / LIBRARY
    if not library.is_file() or is_off():
        return None
    from ...engines.backends.onnxruntime.loaded_graphs import default_threads

    digest = manifest.files[f"plugins/{LIBRARY}"].sha256
    with run.progress.step("measure the CPU"):
        cpu = kept_cpu_speed(run.store, speed.probe, library, digest, default_threads(manifest))
    return speed.on_cpu(cpu, choice)


def _main_type(work: GraphWork) -> str:
    """Return the number format of most of the layers' weights."""
    products = dict(work.products)
    if work.experts:
        products[work.experts.kind] = products.get(work.experts.kind, 0) + work.experts.values
    return max(products, key=lambda kind: products[kind])


def _measured_lengths(choice: KChoice) -> AcceptanceLengths:
    tokens = isotonic(rate.tokens_per_round for rate in choice.rates)
    known = {rate.k: each for rate, each in zip(choice.rates, tokens, strict=True) if rate.k}
    return AcceptanceLengths(known, "acceptance lengths measured while choosing K")


def _milliseconds(choice: KChoice) -> Mapping[int, float]:
    """Return the measured duration of a round by its number of drafts."""
    return {rate.k: 1e3 * rate.tokens_per_round / rate.tokens_per_second for rate in choice.rates}
