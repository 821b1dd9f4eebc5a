"""Last stage of a build: assemble the engine folder, choose K where it can be measured, and publish the engine."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...engines.folder.manifest import Manifest
from ...engines.folder.records import BatchCosts
from ...plugins.errors import BuildError, EnvironmentProblem
from ..precision.recipes import lead_sentence
from ..request.build_plan import BuildPlan
from ..request.resolved_config import FILE_NAME as RESOLVED
from ..store.publish import Assembly, assembling
from ..store.stages import Stage
from .batch_costs import cached_batches
from .check_numbers import cached_check, not_checked
from .choose_k import KChoice, cached_choice, with_choice
from .engine_speed import EngineSpeed, speed_of_engine
from .graph_account import GraphAccount
from .plan_stages import Plans
from .reports.engine_contents import REPORT, REPORT_PAGE
from .reports.report import BuildReport
from .shared_steps import PipelineRun, bytes_of


@dataclass(frozen=True)
class BuildResult:
    """The published engine, its manifest, and the content of ``build_report.json``."""

    path: Path
    manifest: Manifest
    report: dict[str, Any]


@dataclass(frozen=True)
class EnginePieces:
    """Components of an engine: kept stages and their folders in the engine, by component.

    Stages in ``adopted`` leave the store when the engine is published, the others are copied. ``compiled`` holds
    kernels and plugins, kernels first; ``place_side_files`` places the files that accompany the graphs.
    ``make_plans`` rebuilds ``plans`` for another number of drafts, and returns them with their manifest. ``speed`` is
    None for graphs from an export.
    """

    stages: Mapping[str, Stage]
    folders: Mapping[str, str]
    compiled: Sequence[Stage]
    place_side_files: Callable[[Assembly], None]
    account: GraphAccount
    plans: Plans | None
    make_plans: Callable[[int], tuple[Plans, Manifest]] | None
    adopted: Collection[str] = ()
    speed: EngineSpeed | None = None

    def place(self, assembly: Assembly, run: PipelineRun) -> None:
        """Place all components in the engine folder."""
        for name, stage in self.stages.items():
            place = assembly.adopt_stage if name in self.adopted else assembly.place_stage
            place(stage, self.folders[name], run.progress)
        for stage in self.compiled:
            assembly.place_stage(stage, "plugins", run.progress)
        self.place_side_files(assembly)

    def with_plans(self, plans: Plans, assembly: Assembly, run: PipelineRun) -> EnginePieces:
        """Replace the current plans, and return the updated components."""
        updated = replace(self, plans=plans, stages=plans.stages())
        for name, stage in self.stages.items():
            assembly.drop_stage(stage, self.folders[name])
            assembly.place_stage(updated.stages[name], self.folders[name], run.progress)
        return updated

    @property
    def output_stages(self) -> dict[str, Stage]:
        """Return the stages that determine the engine's outputs."""
        return {**self.stages, **({"kernels": self.compiled[0]} if self.compiled else {})}


def assemble(
    run: PipelineRun,
    plan: BuildPlan,
    pieces: EnginePieces,
    manifest: Manifest,
    warnings: Sequence[str],
    notes: Sequence[str],
    config: Callable[[BuildPlan, Manifest], str],
) -> BuildResult:
    """Publish the engine that ``manifest`` describes, with its reports and the ``config`` that repeats the build.

    ``warnings`` are reported before the warnings on the choice of K, ``notes`` after them.
    """
    messages, platform, out = list(warnings), plan.platform, plan.request.out
    with assembling(out, bytes_of(pieces.stages), run.progress) as assembly:
        with run.phases("assemble"):
            pieces.place(assembly, run)
            manifest = assembly.write_manifest(manifest)
        choice = None
        if plan.speculation.adapts and platform.runs_here:
            with run.phases("choose K") as record:
                choice, record["reused"] = cached_choice(
                    run, manifest, assembly.folder, pieces.output_stages, engine=out
                )
            pieces, manifest, found = _with_plans_for(choice, plan, pieces, manifest, assembly, run)
            messages += found
            batches: tuple[BatchCosts, ...] = ()
            try:
                with run.phases("measure batches") as record:
                    batches, record["reused"] = cached_batches(
                        run, manifest, assembly.folder, pieces.output_stages, choice
                    )
            except EnvironmentProblem as error:  # the engine is whole without them
                messages.append(
                    f"rounds of several requests were not measured, so their K comes from estimates until "
                    f"`peagle-compile tune {shlex.quote(str(out))}` measures them: {error.one_line}"
                )
            manifest = with_choice(manifest, choice, batches)
        elif platform.runs_here:
            with run.phases("check numbers") as record:
                record["reused"] = cached_check(run, manifest, assembly.folder, pieces.output_stages, name=out)
        else:
            messages.append(not_checked(platform.gpus))
        first = lead_sentence(manifest.precision)
        messages = [*([first] if first else []), *messages, *_choice_warnings(plan, manifest, choice), *notes]
        messages += pieces.plans.warnings() if pieces.plans else []
        speed = speed_of_engine(pieces.speed, run, manifest, assembly.folder, choice) if pieces.speed else None
        report = BuildReport(
            manifest, run.phases, bytes_of(pieces.stages), choice, messages, pieces.account, pieces.plans,
            plan.recipe.wide, speed, pieces.speed.pass_bytes if pieces.speed else (),
        )  # fmt: skip
        content = report.as_json()
        assembly.place_text(REPORT, json.dumps(content, indent=2) + "\n")
        assembly.place_text(REPORT_PAGE, report.as_html(out.name))
        assembly.place_text(RESOLVED, config(plan, manifest))
        manifest = assembly.write_manifest(manifest)
        assembly.check_engine(manifest, run.progress)
    return BuildResult(out, manifest, content)


def _with_plans_for(
    choice: KChoice, plan: BuildPlan, pieces: EnginePieces, manifest: Manifest, assembly: Assembly, run: PipelineRun
) -> tuple[EnginePieces, Manifest, list[str]]:
    """Rebuild the plans if the chosen K is enough faster than the K of ``plan``; return components, manifest, warnings.

    The outputs of rebuilt plans are checked. If the plans are kept, a warning gives the reason.
    """
    k = plan.speculation.num_speculative_tokens
    if pieces.make_plans is None or choice.k == k:
        return pieces, manifest, []
    gain = f"the plans are tuned for K = {k}; K = {choice.k} decoded {choice.gain_over(k):.2f}x as fast"
    if not choice.should_rebuild(k):
        return pieces, manifest, [f"{gain}, a gain too small to rebuild the plans"]
    try:
        plans, described = pieces.make_plans(choice.k)
    except (BuildError, EnvironmentProblem) as error:  # the existing plans are intact
        return pieces, manifest, [f"{gain}, but the plans could not be rebuilt: {error.one_line}"]
    again = pieces.with_plans(plans, assembly, run)
    manifest = assembly.write_manifest(described)
    with run.phases("check numbers") as record:
        record["reused"] = cached_check(run, manifest, assembly.folder, again.output_stages, name=plan.request.out)
    return again, manifest, []


def _choice_warnings(plan: BuildPlan, manifest: Manifest, choice: KChoice | None) -> list[str]:
    """Return warnings on a K that the user did not request."""
    if not plan.speculation.adapts:
        return []
    method = manifest.draft_method
    if choice is None:
        of_method = f"the default maximum of {method.name}"
        chosen = "the trained depth of the head" if method.needs_head else of_method
        why = f"this machine cannot run an engine for {', '.join(plan.platform.gpus)}"
        return [f"K = {plan.speculation.num_speculative_tokens} is {chosen} and was not measured: {why}"]
    if choice.speedup > 1:
        return []
    hint = "; repetitive text may still benefit" if method.is_on_host else ""
    return [f"no number of drafts decodes faster than plain decoding on this machine{hint}"]
