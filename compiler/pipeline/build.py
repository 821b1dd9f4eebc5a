"""From a checkpoint pair to an engine folder: resolve, read, make the graphs and plans, choose K, publish."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...engines.folder.manifest import Manifest
from ..checkpoints.resolve_names import Resolved, resolve, resolve_target
from ..checkpoints.target_and_drafter import Inputs, read_inputs, require_runner
from ..console.progress import Progress
from ..hardware.packages import export_versions
from ..precision.decide_recipe import decide
from ..precision.recipes import Recipe, first_words
from ..request.build_platform import BuildPlatform, platform_of
from ..request.experts_form import suited
from ..request.refusals import check_build
from ..request.request import CompileRequest
from ..request.resolved_config import FILE_NAME as RESOLVED
from ..request.resolved_config import resolved_config
from ..store.made_for import MadeFor
from ..store.publish import Assembly, assembling
from ..store.stages import Stage, StageStore
from .check_numbers import kept_check, not_checked
from .choose_k import KChoice, kept_choice, with_choice
from .cpu_kernels import cpu_kernels
from .engine_manifest import engine_manifest
from .plan_stages import build_plans
from .report import BuildReport
from .shared_steps import Blueprint, Graphs, PipelineRun, bytes_of, compile_graphs

_FP8_TAKEN = "the checkpoint is FP8 with scales for its inputs, and so is the engine: --precision bf16 would widen it"


@dataclass(frozen=True)
class BuildResult:
    """The published engine, its manifest, and what ``build_report.json`` says."""

    path: Path
    manifest: Manifest
    report: dict[str, Any]


def build(request: CompileRequest, progress: Progress | None = None, store: StageStore | None = None) -> BuildResult:
    """Build ``request.pair.model`` with its drafter, if any is wanted, into the engine folder ``request.out``.

    Raises ``UsageError``, ``EnvironmentProblem`` or ``BuildError``; whatever goes wrong, ``request.out`` is either what
    it was before or the finished engine, and finished steps are reused by the next build.
    """
    check_build(request)
    run = PipelineRun.begin(store or StageStore.default(force=request.force), progress)
    with run.phases("resolve"):
        platform = platform_of(request)
        versions = {platform.backend: platform.version, **export_versions()}
        resolved = _resolve(request, run.progress)
    with run.phases("read", "read checkpoints"):
        inputs = read_inputs(request.sizes, resolved, request.head.over)
        lowering, said = suited(platform.lowering, request.backend.experts, inputs.target.family)
        platform = replace(platform, lowering=lowering)
        require_runner(inputs.head, platform.lowering)
        recipe = decide(
            request.precision, platform.lowering, inputs.target, platform.gpus, keeps_own=True, head=inputs.head
        )
        warnings = [*inputs.warnings, *request.unused(), *said]
        warnings += [_FP8_TAKEN] if request.precision.name is None and recipe.name == "fp8" else []
        request = replace(request, precision=replace(request.precision, name=recipe.name))
    names = resolved.repeatable()
    made_for = MadeFor("build", names["model"] or "", names["draft"] or "", recipe.name, platform.lowering.name)
    run = replace(run, store=replace(run.store, made_for=made_for))
    kernels = cpu_kernels(run, platform, is_asked=request.backend.lowering is not None)
    platform = replace(platform, lowering=kernels.lowering)
    blueprint = _blueprint(inputs, recipe, platform)
    graphs = compile_graphs(run, blueprint, request.calibration, model=request.pair.model)
    plans = None
    if platform.makes_plans:
        plans = build_plans(run, graphs, platform, request, max_k=inputs.max_k, max_seq_len=inputs.max_seq_len)
        versions |= plans.versions()
    asked = request.drafts_asked
    k = inputs.depth if asked is None else asked
    manifest = engine_manifest(platform, recipe, inputs, k, asked, graphs, plans, versions)
    compiled = [*plans.compiled()] if plans else [kernels.stage] if kernels.stage else []
    warnings += kernels.warnings
    stages = plans.stages() if plans else graphs.stages()
    made_of = {**stages, "kernels": compiled[0]} if compiled else stages
    sizes = bytes_of(stages)
    with assembling(request.out, sizes) as assembly:
        with run.phases("assemble"):
            _assemble(assembly, inputs, graphs, compiled, stages, run.progress)
            manifest = assembly.write_manifest(manifest)
        choice = None
        if asked is None and platform.runs_here:
            with run.phases("choose K") as record:
                choice, record["reused"] = kept_choice(
                    run, manifest, assembly.folder, made_of, inputs.depth, engine=request.out
                )
            manifest = with_choice(manifest, choice)
        elif platform.runs_here:
            with run.phases("check numbers") as record:
                record["reused"] = kept_check(run, manifest, assembly.folder, made_of, name=request.out)
        else:
            warnings.append(not_checked(platform.gpus))
        first = first_words(manifest.precision)
        warnings = [*([first] if first else []), *warnings, *_of_choice(request, platform, choice, k)]
        warnings += [*blueprint.warnings(), *graphs.notes(), *(plans.warnings() if plans else ())]
        report = BuildReport(manifest, run.phases, sizes, choice, warnings, graphs, plans, recipe.wide)
        content = report.as_json()
        assembly.place_text("build_report.json", json.dumps(content, indent=2) + "\n")
        assembly.place_text("build_report.html", report.as_html(request.out.name))
        assembly.place_text(RESOLVED, resolved_config(request, platform, inputs, manifest))
        with run.progress.step("publish"):
            manifest = assembly.write_manifest(manifest)
    return BuildResult(request.out, manifest, content)


def _blueprint(inputs: Inputs, recipe: Recipe, platform: BuildPlatform) -> Blueprint:
    lowering = platform.lowering
    # A plan holds its own weights; graphs of ONNX Runtime can lie in one folder and read one file.
    shares = not platform.makes_plans
    return Blueprint(inputs.target, inputs.drafter, recipe, lowering, inputs.cache_length(lowering), shares)


def _resolve(request: CompileRequest, progress: Progress) -> Resolved:
    """Fetch the checkpoints; a drafter that nothing would be drafted with is not."""
    pair = request.pair
    if request.draft != "drafter":
        return resolve_target(pair.model, pair.revision, progress, ngram=request.draft == "ngram")
    return resolve(pair.model, pair.draft, pair.revision, pair.draft_revision, progress)


def _assemble(
    assembly: Assembly,
    inputs: Inputs,
    graphs: Graphs,
    kernels: list[Stage],
    stages: dict[str, Stage],
    progress: Progress,
) -> None:
    for name, stage in stages.items():
        of_graphs = graphs.compiled[name].files.folder
        assembly.place_stage(stage, of_graphs or name, progress)
    for stage in kernels:
        assembly.place_stage(stage, "plugins", progress)
    graphs.furnish(assembly, inputs.target.folder)


def _of_choice(request: CompileRequest, platform: BuildPlatform, choice: KChoice | None, k: int) -> list[str]:
    """List what a user should know of a K that was not asked for."""
    if request.drafts_asked is not None:
        return []
    looked_up = request.draft == "ngram"
    if choice is None:
        what = "the most that is looked up" if looked_up else "the depth that the head was trained for"
        why = f"this machine cannot run an engine for {', '.join(platform.gpus)}"
        return [f"K = {k} is {what}, not measured: {why}"]
    if choice.speedup > 1:
        return []
    where = "; where text repeats what stands in it, one may" if looked_up else ""
    return [f"on this machine no number of drafts decodes faster than plain decoding{where}"]
