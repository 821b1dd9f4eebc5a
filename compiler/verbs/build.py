"""``peagle-compile build``."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from ...plugins.optional_packages import require
from ..console.printing import RESUMABLE, columns, emit, interruptible, note, size
from ..request.request import CompileRequest
from ..request.verb_options import BUILD
from .flags.options_signature import takes_options
from .flags.shared_flags import DryRun, Force, IgnoreLimits, Json
from .flags.verbosity import Verbosity, with_verbosity

if TYPE_CHECKING:
    from ...engines.folder.manifest import Manifest
    from ..console.progress import Progress
    from ..pipeline.assemble_engine import BuildResult
    from ..resources.speed.round_estimate import SpeedEstimate


@interruptible(RESUMABLE)
@takes_options(BUILD)
@with_verbosity
def build(
    request: CompileRequest,
    verbosity: Verbosity,
    dry_run: DryRun = False,
    ignore_limits: IgnoreLimits = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Build an engine from a model and its P-EAGLE or EAGLE-3 head, or from a model alone.

    A repeated build skips steps whose inputs have not changed. An interrupted build writes no
    engine; run the same command again to resume it.

    Example: peagle-compile build --model demo --out demo-engine
    """
    request = replace(request, force=force, ignore_limits=ignore_limits)
    if dry_run and request.source is not None:
        from ..resources.speed.page import speed_rows
        from ..resources.speed.round_estimate import SPEED

        with verbosity.work() as progress:
            rows, notes, speed, outcome = _plans_of_export(request, progress)
        if as_json:
            emit(dict([*rows, outcome]) | {"notes": notes} | ({SPEED: speed.as_json()} if speed else {}))
        else:
            rows += [("note", text) for text in notes]
            print(columns([*rows, *(speed_rows(speed) if speed else []), outcome]))
        return
    if dry_run:
        require("export", "the dry run")
        from ..resources.dry_run import estimate_build
        from ..resources.page import render

        with verbosity.work() as progress:
            found = estimate_build(request, progress)
        emit(found.as_json()) if as_json else print(render(found))
        return
    if request.source is not None:
        from ..pipeline.build_from_export import build_from

        reported: list[str] = []
        with verbosity.work() as progress:
            result = build_from(request, progress)
    else:
        from ..pipeline.build import build as run_build
        from ..request.build_platform import expected_warnings

        reported = expected_warnings(request)
        for text in reported:
            note(f"note: {text}")
        with verbosity.work() as progress:
            result = run_build(request, progress)
    for warning in result.report["warnings"]:
        if warning not in reported:
            note(f"warning: {warning}")
    if as_json:
        emit({"engine": str(result.path), **result.report})
    else:
        print(_summary(result))


def _plans_of_export(
    request: CompileRequest, progress: Progress
) -> tuple[list[tuple[str, str]], list[str], SpeedEstimate | None, tuple[str, str]]:
    """Return rows of ``build --from DIR --dry-run``, notes, the speed estimate of the export, and the outcome's row.

    Raises ``UsageError`` for what no machine can build, and ``EnvironmentProblem`` if no GPU is known.
    """
    from ..pipeline.build_from_export import check_from, plan_of_any_export, takes
    from ..pipeline.reports.recorded_contents import export_report
    from ..resources.check import Outcome, builder_needs, disk_needs, possible_shortages, refusal_of
    from ..resources.speed.round_estimate import SpeedEstimate
    from ..store.stages import StageStore

    with progress.step("read the export"):
        check_from(request)
        export, plan, problem = plan_of_any_export(request)
    weights, manifest, platform = export.weight_bytes, export.record.manifest, plan.platform
    disk, builder = takes(plan, export, StageStore.default(force=request.force))
    needs = (*disk_needs(disk), *builder_needs(builder))
    outcome = Outcome.of(problem) if problem else Outcome.of(refusal_of(needs), ignored=request.ignore_limits)
    product = " ".join(filter(None, (platform.title, platform.version)))
    rows = [
        ("plan", f"{manifest.target.origin.id} from {export.path} (dry run; nothing is written)"),
        ("platform", f"{product} for {', '.join(platform.gpus)}, lowering {platform.lowering}"),
        ("precision", manifest.precision.get("recipe", "")),
        ("graphs and weights", ", ".join(f"{name} {size(count)}" for name, count in weights.items())),
        ("host memory", builder.memory()),
        ("time", f"{size(sum(weights.values()))} to hash; {builder.time()}"),
        ("disk", disk.describe()),
    ]
    speed = SpeedEstimate.of_report(export_report(export.path))
    return rows, possible_shortages(needs), speed, outcome.row()


def _drafts(manifest: Manifest) -> str:
    number = f"{manifest.speculation.num_speculative_tokens}"
    k = f"{number} initially, then adaptive" if manifest.speculation.adapts else number
    method = manifest.draft_method
    if not method.drafts:
        return f"none: {method.help}"
    return f"{k}; {method.note}" if method.note else k


def _summary(result: BuildResult) -> str:
    from ..precision.recipes import lead_sentence
    from ..resources.speed.page import TITLE, speed_line
    from ..resources.speed.round_estimate import SPEED, SpeedEstimate
    from .precision_rows import first_rows, precision_rows

    report = result.report
    reused = [phase["phase"] for phase in report["phases"] if phase.get("reused")]
    gpus = ", ".join(result.manifest.backend.gpus)
    lowering = f", lowering {result.manifest.backend.lowering}"
    rows = [
        *first_rows(lead_sentence(result.manifest.precision)),
        ("engine", f"{result.path}, for {result.manifest.backend.name}" + (f" on {gpus}" if gpus else lowering)),
        *precision_rows(result.manifest.precision, report),
        ("plans" if gpus else "weights", ", ".join(f"{name} {size(count)}" for name, count in report["bytes"].items())),
        ("speculative tokens", _drafts(result.manifest)),
        ("time", f"{sum(phase['seconds'] for phase in report['phases']):.1f} s"),
    ]
    if "choose_k" in report:
        rows.append(("speed", f"{report['choose_k']['speedup']:.2f}x plain decoding, measured while choosing K"))
    if SPEED in report:
        found = SpeedEstimate.from_json(report[SPEED])
        k = result.manifest.speculation.num_speculative_tokens
        rows.append((TITLE, speed_line(found, k)))
    if reused:
        rows.append(("unchanged", ", ".join(reused)))
    rows.append(("next", f"peagle-compile {_next(result, here='choose_k' in report or not gpus)}"))
    return columns(rows)


def _next(result: BuildResult, *, here: bool) -> str:
    """Return the command to try next with an engine, which runs ``here`` or elsewhere."""
    from ...engines.text.template_files import read_templates

    quoted = shlex.quote(str(result.path))
    if not here:
        return f"inspect {quoted}"
    if read_templates(result.path):
        return f"chat {quoted}"
    return f"run {quoted} --prompt 'def gcd(a, b):' --stats"
