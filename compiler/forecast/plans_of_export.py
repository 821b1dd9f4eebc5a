"""``build --from DIR --dry-run``: what the build of an export's plans would take. Writes nothing."""

from __future__ import annotations

from ..console.printing import size
from ..pipeline.build_from_export import check_from, settle
from ..request.request import CompileRequest
from ..store.stages import StageStore
from .build_work import builder_bytes
from .disk import disk_of


def forecast_plans(request: CompileRequest) -> list[tuple[str, str]]:
    """The rows of the forecast. Raises what the build would refuse before it begins."""
    check_from(request)
    export, manifest, platform = settle(request)
    weights = {
        name: sum(entry.size for file, entry in export.files.items() if file.startswith(f"{name}/model."))
        for name in manifest.parts
    }
    cache, written = StageStore.default().root, sum(weights.values())
    disk = disk_of(cache, request.out, written)
    return [
        ("plan", f"{manifest.target.origin.id} from {export.path}; nothing is written"),
        ("platform", f"{platform.title} {platform.version} for {', '.join(platform.gpus)}, form {platform.lowering}"),
        ("precision", manifest.precision.get("recipe", "")),
        ("graphs and weights", ", ".join(f"{name} {size(count)}" for name, count in weights.items())),
        (
            "host memory",
            f"about {size(builder_bytes(max(weights.values())))} in a process of its own, 3.07 times the weights of "
            "the larger plan as measured with TensorRT-RTX; full TensorRT was not measured",
        ),
        ("time", f"{size(written)} to hash; what TensorRT takes was not measured"),
        ("disk", disk.said()),
    ]
