"""``build --from DIR --dry-run``: what the build of an export's plans would take, and how it would end here."""

from __future__ import annotations

from ..console.printing import size
from ..console.progress import Progress, Quiet
from ..needs.room import builder_needs, disk_needs, refusal_of, tight
from ..pipeline.build_from_export import check_from, settle, takes, weight_bytes
from ..request.request import CompileRequest
from ..store.stages import StageStore
from .printing import memory_of, outcome_row, time_of
from .record import Outcome


def forecast_plans(request: CompileRequest, progress: Progress | None = None) -> list[tuple[str, str]]:
    """The rows of the forecast. Raises what the build would refuse before it reads the export."""
    with (progress or Quiet()).step("read the export"):
        check_from(request)
        export, manifest, platform = settle(request)
    weights = weight_bytes(export, manifest)
    disk, builder = takes(request, export, manifest, platform, StageStore.default(force=request.force))
    needs = (*disk_needs(disk), *builder_needs(builder))
    refusal = refusal_of(needs)
    return [
        ("plan", f"{manifest.target.origin.id} from {export.path}; nothing is written"),
        ("platform", f"{platform.title} {platform.version} for {', '.join(platform.gpus)}, form {platform.lowering}"),
        ("precision", manifest.precision.get("recipe", "")),
        ("graphs and weights", ", ".join(f"{name} {size(count)}" for name, count in weights.items())),
        ("host memory", memory_of(builder)),
        ("time", f"{size(sum(weights.values()))} to hash; {time_of(builder)}"),
        ("disk", disk.said()),
        *(("note", text) for text in tight(needs)),
        outcome_row(Outcome.of(refusal, ignored=request.ignore_limits)),
    ]
