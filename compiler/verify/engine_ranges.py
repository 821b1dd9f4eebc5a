"""Recover the calibrated ranges of an engine from the calibration settings in its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...engines.folder.manifest import Manifest
from ...graphs.lowering import lowering_named
from ...plugins.errors import EnvironmentProblem, PeagleError
from ..console.progress import Progress
from ..pipeline.reports.engine_contents import REPORT
from ..precision.calibration.dataset import default_limits
from ..precision.calibration.obtain_ranges import InputTypes, obtain, origin
from ..precision.calibration.saved_ranges import Scales
from ..request.resolved_config import FILE_NAME, calibration_of
from ..store.stages import StageStore
from .engine_origin import Origins

_FIX = "restore the calibration samples or the saved ranges at their paths, or rebuild the engine"


def rebuild_ranges(folder: Path, manifest: Manifest, origins: Origins, store: StageStore, progress: Progress) -> Scales:
    """Return the ranges of the engine in ``folder``, from the store or calibrated again with the same settings.

    Raises ``EnvironmentProblem`` if the samples or the saved ranges are missing or have changed.
    """
    config, recorded = _read(folder / FILE_NAME), _read(folder / REPORT).get("calibration")
    how = calibration_of(config)
    try:
        how.check()
        types = InputTypes.recorded(recorded.get("method") if isinstance(recorded, dict) else None)
        limits = default_limits(lowering_named(manifest.backend.lowering))
        scales = obtain(how, origins.target, store, progress, defaults=limits, input_types=types)
    except PeagleError as error:
        raise EnvironmentProblem(
            f"cannot recover the calibrated ranges of the engine: {error.what}", why=error.why, fix=_FIX
        ) from None
    now = origin(scales)
    if not isinstance(recorded, dict) or {name: recorded.get(name) for name in now} != now:
        raise EnvironmentProblem(
            "cannot recover the calibrated ranges of the engine",
            why=f"{REPORT} records {recorded}, but the recorded settings now give {now}",
            fix=_FIX,
        )
    return scales


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
