"""From a checkpoint pair to an engine folder: resolve, read, trace, lower, attach weights, build plans, choose K,
publish."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...engines.folder.manifest import Manifest
from ..bundled.prompts import code_prompts
from ..checkpoints.pair import Inputs, read_inputs
from ..checkpoints.registry import resolve
from ..console.progress import Progress, Quiet
from ..hardware.packages import export_versions
from ..precision.calibration.ranges import FOLDER
from ..precision.recipes import Recipe, emulated, twice_rounded, widened
from ..request.options import BuildOptions
from ..request.resolved import FILE_NAME as RESOLVED
from ..request.resolved import resolved_config
from ..request.settle import Settled, recipe_for, settle
from ..store.publish import Assembly, assembling
from ..store.stages import Stage, StageStore
from ..tune.choose_k import Choice, Rate, choose_k, require_finite
from .compiled import Compiled, attach, noted, trace
from .half import drafter_half, target_half
from .manifest import engine_manifest
from .plans import PLAN, PlanStage, build_kernels, build_plan
from .ranges import calibrated
from .report import Phases, build_report
from .report_html import report_html

if TYPE_CHECKING:
    from ..precision.calibration import Scales

_FP8_TAKEN = "the checkpoint is FP8 with scales for its inputs, and so is the engine: --precision bf16 would widen it"
_SWEEPS, _PROMPTS, _TOKENS = 3, 4, 48


@dataclass(frozen=True)
class BuildResult:
    """The published engine, its manifest, and what ``build_report.json`` says."""

    path: Path
    manifest: Manifest
    report: dict[str, Any]


@dataclass(frozen=True)
class _Made:
    """The finished steps of a build: graphs, and with TensorRT their plans and our kernels."""

    compiled: list[Compiled]
    plans: list[PlanStage]
    kernels: Stage | None
    ranges: Scales | None = None

    def placed(self) -> list[Stage]:
        """What goes into ``target/`` and ``drafter/``."""
        if not self.plans:
            return [done.attached for done in self.compiled]
        return [replace(done.stage, files={PLAN: done.stage.files[PLAN]}) for done in self.plans]


def build(options: BuildOptions, progress: Progress | None = None, store: StageStore | None = None) -> BuildResult:
    """Build ``options.model`` with its drafter into the engine folder ``options.out``.

    Raises ``UsageError``, ``EnvironmentProblem`` or ``BuildError``; whatever goes wrong, ``options.out`` is either what
    it was before or the finished engine, and finished steps are reused by the next build.
    """
    progress = progress or Quiet()
    options.check()
    store = store or StageStore.default(force=options.force)
    phase = Phases()
    with phase("resolve"):
        settled = settle(options)
        versions = {settled.backend: settled.version, **export_versions()}
        resolved = resolve(options.model, options.draft, options.revision, options.draft_revision, progress)
    with phase("read"), progress.step("read checkpoints"):
        inputs = read_inputs(options, resolved)
        recipe = recipe_for(settled, options, inputs.target)
        chosen = [_FP8_TAKEN] if options.precision is None and recipe.name == "fp8" else []
        options = replace(options, precision=recipe.name)
    made = _make(options, settled, recipe, inputs, store, phase, progress)
    for done in made.plans:  # what the libraries say of themselves is what a load compares
        versions |= done.facts.versions
    k, warnings = options.num_speculative_tokens or inputs.depth, [*inputs.warnings, *chosen]
    manifest = engine_manifest(settled, recipe, inputs, k, made.compiled, made.plans, versions, made.ranges)
    placed = made.placed()
    sizes = {
        name: sum(entry.size for entry in stage.files.values())
        for name, stage in zip(("target", "drafter"), placed, strict=True)
    }
    with assembling(options.out, sizes) as assembly:
        with phase("assemble"), progress.step("assemble"):
            _assemble(assembly, inputs, placed, made)
            manifest = assembly.write_manifest(manifest)
        choice = None
        if options.num_speculative_tokens is None and not settled.runs_here:
            warnings.append(
                f"K = {k} is the depth that the head was trained for, not measured: "
                f"this machine cannot run an engine for {', '.join(settled.gpus)}"
            )
        elif options.num_speculative_tokens is None:
            with phase("choose K") as record:
                choice, record["reused"] = _choose(
                    store, manifest, assembly.folder, placed, inputs.depth, progress, engine=options.out
                )
            speculation = replace(manifest.speculation, num_speculative_tokens=choice.k)
            manifest = replace(manifest, speculation=speculation)
            if choice.speedup <= 1:
                warnings.append("on this machine no number of drafts decodes faster than plain decoding")
        warnings += [
            *widened(recipe, inputs.target.checkpoint),
            *twice_rounded(recipe, inputs.target.checkpoint),
            *emulated(recipe, settled.lowering),
        ]
        warnings += noted(dict(zip(("target", "drafter"), made.compiled, strict=True)))
        warnings += [warning for done in made.plans for warning in done.facts.warnings]
        report = build_report(
            manifest, phase, sizes, choice, warnings, made.compiled, made.plans, made.ranges, recipe.wide
        )
        assembly.place_text("build_report.json", json.dumps(report, indent=2) + "\n")
        assembly.place_text("build_report.html", report_html(report, manifest, options.out.name))
        assembly.place_text(RESOLVED, resolved_config(options, settled, inputs, manifest))
        with progress.step("publish"):
            manifest = assembly.write_manifest(manifest)
    return BuildResult(options.out, manifest, report)


def _make(
    options: BuildOptions,
    settled: Settled,
    recipe: Recipe,
    inputs: Inputs,
    store: StageStore,
    phase: Phases,
    progress: Progress,
) -> _Made:
    ranges = calibrated(
        options.ranges, inputs.target, recipe, settled.lowering, store, phase, progress,
        model=options.model,
    )  # fmt: skip
    halves = (
        target_half(inputs.target, recipe, settled.lowering, ranges),
        drafter_half(inputs.drafter, inputs.head, inputs.target.spec, recipe, settled.lowering),
    )
    length = inputs.cache_length(settled.lowering)
    compiled: list[Compiled] = []
    for half in halves:
        with phase(f"trace {half.name}") as record:
            traced = trace(store, half, recipe.dtype, progress)
            record["reused"] = traced.reused
        with phase(f"attach {half.name}") as record:
            compiled.append(
                attach(store, half, traced, lowering=settled.lowering, cache_length=length, progress=progress)
            )
            record["reused"] = compiled[-1].attached.reused
    if not settled.makes_plans:
        return _Made(compiled, [], None, ranges)
    plans = []
    for half, done in zip(halves, compiled, strict=True):
        with phase(f"plan {half.name}") as record:
            plans.append(
                build_plan(
                    store, half, done, settled, options,
                    max_k=inputs.max_k, max_seq_len=inputs.max_seq_len, progress=progress,
                )
            )  # fmt: skip
            record["reused"] = plans[-1].stage.reused
    with phase("kernels") as record:
        kernels = build_kernels(store, settled.gpus, progress)
        record["reused"] = kernels.reused
    return _Made(compiled, plans, kernels, ranges)


def _assemble(assembly: Assembly, inputs: Inputs, placed: list[Stage], made: _Made) -> None:
    for name, checkpoint, stage in zip(
        ("target", "drafter"), (inputs.target.checkpoint, inputs.drafter), placed, strict=True
    ):
        assembly.place_stage(stage, name)
        assembly.place_copy(checkpoint.folder / "config.json", f"{name}/config.json")
    if made.kernels:
        assembly.place_stage(made.kernels, "plugins")
    if made.ranges:
        made.ranges.save(assembly.folder / FOLDER)
        assembly.enter(FOLDER)
    assembly.place_tokenizer(inputs.target.folder)


def _choose(
    store: StageStore,
    manifest: Manifest,
    folder: Path,
    placed: list[Stage],
    depth: int,
    progress: Progress,
    *,
    engine: Path,
) -> tuple[Choice, bool]:
    """Measure, or take the measurement of an earlier build of the same graphs on the same runtime.

    ``engine`` is what ``folder`` will be called. Raises ``BuildError`` when the target gives no numbers.
    """

    def make(stage: Path) -> None:
        from ...engines import Engine, SamplingParams

        loaded = Engine.load(folder, check_hashes=False)
        params = SamplingParams(max_tokens=_TOKENS, ignore_eos=True)

        def decode(prompt: str, k: int) -> tuple[int, float]:
            output = loaded.generate([prompt], params, num_speculative_tokens=k)[0]
            return len(output.token_ids) - 1, output.decode_seconds  # the first is the prompt's pass

        prompts = [prompt.text for prompt in code_prompts(_PROMPTS)]
        require_finite(lambda text: loaded.target_logits(loaded.tokenizer.encode(text)), prompts, manifest, engine)
        with progress.step(f"choose K among 1..{depth}", _SWEEPS * len(prompts)) as advance:
            choice = choose_k(decode, prompts, depth, sweeps=_SWEEPS, advance=advance)
        (stage / "choice.json").write_text(json.dumps(asdict(choice)))

    backend = manifest.backend
    key = [[stage.path.name for stage in placed], backend.versions[backend.name], depth, platform.node()]
    stage = store.run("choose-k", key, make)
    content = json.loads((stage.path / "choice.json").read_bytes())
    return Choice(content["k"], tuple(Rate(**rate) for rate in content["rates"])), stage.reused
