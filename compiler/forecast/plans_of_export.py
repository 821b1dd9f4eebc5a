"""``build --from DIR --dry-run``: what the build of an export's plans would take, and how it would end here."""

from __future__ import annotations

from ..console.printing import size
from ..console.progress import Progress, Quiet
from ..needs.room import builder_needs, disk_needs, refusal_of, tight
from ..pipeline.build_from_export import check_from, plan_of_plans_anywhere, takes
from ..request.request import CompileRequest
from ..store.stages import StageStore
from .printing import memory_of, outcome_row, time_of
from .record import Outcome


def forecast_plans(request: CompileRequest, progress: Progress | None = None) -> list[tuple[str, str]]:
    """The rows of the forecast. Raises what no machine could build, and where no GPU is known to plan for."""
    with (progress or Quiet()).step("read the export"):
        check_from(request)
        export, plan, problem = plan_of_plans_anywhere(request)
    weights, manifest, platform = export.weight_bytes, export.kept.manifest, plan.platform
    disk, builder = takes(plan, export, StageStore.default(force=request.force))
    needs = (*disk_needs(disk), *builder_needs(builder))
    outcome = Outcome.of(problem) if problem else Outcome.of(refusal_of(needs), ignored=request.ignore_limits)
    return [
        ("plan", f"{manifest.target.origin.id} from {export.path}; nothing is written"),
        (
            "platform",
            f"{' '.join(filter(None, (platform.title, platform.version)))} for {', '.join(platform.gpus)}, "
            f"form {platform.lowering}",
        ),
        ("precision", manifest.precision.get("recipe", "")),
        ("graphs and weights", ", ".join(f"{name} {size(count)}" for name, count in weights.items())),
        ("host memory", memory_of(builder)),
        ("time", f"{size(sum(weights.values()))} to hash; {time_of(builder)}"),
        ("disk", disk.said()),
        *(("note", text) for text in tight(needs)),
        outcome_row(outcome),
    ]
