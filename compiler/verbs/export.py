"""``peagle-compile export``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...plugins.optional_packages import require
from ..console.printing import RESUMABLE, columns, emit, interruptible, note, size
from ..request.request import CompileRequest
from ..request.verb_options import EXPORT
from .flags.options_signature import takes_options
from .flags.shared_flags import DryRun, Force, IgnoreLimits, Json
from .flags.verbosity import Verbosity, with_verbosity

if TYPE_CHECKING:
    from ..pipeline.export import ExportResult


@interruptible(RESUMABLE)
@takes_options(EXPORT)
@with_verbosity
def export(
    request: CompileRequest,
    verbosity: Verbosity,
    dry_run: DryRun = False,
    ignore_limits: IgnoreLimits = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Export a model and its drafter as ONNX graphs with external weights.

    Each model gets semantic.onnx (backend-independent, with operators of the peagle domain) and model.onnx (lowered for
    one backend). The two share one weight file.

    Example: peagle-compile export --model demo --out demo-onnx
    """
    request = replace(request, force=force, ignore_limits=ignore_limits)
    if dry_run:
        require("export", "the dry run")
        from ..resources.dry_run import estimate_export
        from ..resources.page import render

        with verbosity.work() as progress:
            found = estimate_export(request, progress)
        emit(found.as_json()) if as_json else print(render(found))
        return
    from ..pipeline.export import export as run_export

    with verbosity.work() as progress:
        result = run_export(request, progress)
    for warning in result.report["warnings"]:
        note(f"warning: {warning}")
    if as_json:
        emit({"export": str(result.path), **result.report})
    else:
        print(_summary(result))


def _summary(result: ExportResult) -> str:
    from ..precision.recipes import MULTIPLIED
    from ..resources.speed.page import speed_rows
    from ..resources.speed.round_estimate import SPEED, SpeedEstimate
    from .precision_rows import first_rows, precision_rows, stored_rows

    report = result.report
    reused = [phase["phase"] for phase in report["phases"] if phase.get("reused")]
    stored = ", ".join(
        f"{name} {size(count)} ({report['checkpoint_format'][name]})"
        for name, count in report["checkpoint_bytes"].items()
    )
    rows = [
        *first_rows(report.get(MULTIPLIED, "")),
        ("export", f"{result.path}, for {report['for']}"),
        *stored_rows(report),
        *precision_rows(report["recipe"], report),
        ("checkpoints", stored),
        ("graphs and weights", ", ".join(f"{name} {size(count)}" for name, count in report["bytes"].items())),
        (
            "peak memory",
            f"{size(report['peak_rss_bytes'])}, {size(report['peak_rss_beyond_imports_bytes'])} above imports",
        ),
        ("time", f"{report['seconds']:.1f} s"),
    ]
    if SPEED in report:
        rows += speed_rows(SpeedEstimate.from_json(report[SPEED]))
    if reused:
        rows.append(("unchanged", ", ".join(reused)))
    return columns(rows)
